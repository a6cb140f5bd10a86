// A group of ranks, by the name of its backend; and of the ranks that a
// launcher started, whichever it is: where they meet, and how they join.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_CREATE_GROUP_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_CREATE_GROUP_H_

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "collectives/communicator.h"
#include "collectives/launch/rank_environment.h"

namespace lockstep {

// The ranks of a group that this process holds, in rank order.
using LocalRanks = std::vector<std::unique_ptr<Communicator>>;

// Creates or joins a group, and returns once all of its ranks have joined:
//
//   threads    world_size ranks, all of them here: use each from a thread
//              of its own.
//   processes  one rank: a launcher (//collectives:launch, torchrun, mpirun,
//              srun) started this process as one of world_size, and its
//              environment says which. With ranks on several hosts, as tcp.
//   tcp        the same, over TCP also on one host (tcp/tcp_group.h).
//   mpi        one rank: mpirun or srun started this process. For programs that
//              depend on //collectives/mpi:mpi_group.
//   nccl       one rank, with buffers in the memory of GPU number LOCAL_RANK;
//              if there are fewer GPUs, several ranks share one. For programs
//              that depend on //collectives/nccl:nccl_group.
//
// world_size: 0 is what the launcher says; `threads` then has as many ranks as
// this process may use cores, up to kMaxWorldSize.
//
// Errors: kInvalidArgument for an unknown backend, and for a world size that is
// not the launcher's; kUnimplemented, naming the library, for a backend that
// this program was not linked with; kFailedPrecondition if no launcher started
// this process where one must; those of the backend.
absl::StatusOr<LocalRanks> CreateGroup(absl::string_view backend,
                                       int world_size = 0,
                                       const GroupOptions& options = {});

// Makes a backend known to CreateGroup, before main(): libraries with heavy
// dependencies do so, so that only the programs that want them pay for them.
// factory: joins the group as the one rank that this process is. Returns true.
using BackendFactory =
    std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
        const GroupOptions& options)>;
bool RegisterBackend(absl::string_view name, BackendFactory factory);

// The nearest ancestor of this process that does not belong to this rank, that
// is, whose environment does not have `variables` as this process has them: all
// ranks that one launcher started on this host find the same, also those that
// shells or other programs stand before.
//
// variables: names of those that tell a rank from others and one launcher's
// from another's.
ProcessIdentity FindLauncherProcess(
    std::span<const absl::string_view> variables);

// A file, or a port of rank 0's host.
struct MeetingPlace {
  // One of these two, unless the place is a port.
  std::string file = {};    // Exists, or may be created by any rank.
  std::string folder = {};  // A private one, to be created, for a file.
  std::string address = {};
  int port = 0;
  std::string listen_address = {};
  std::string token = {};

  friend bool operator==(const MeetingPlace&, const MeetingPlace&) = default;
};

// What all ranks of a run work out alike, without a word between them:
//
//   LOCKSTEP_RENDEZVOUS    if all ranks are on one host, the file of that
//                          path: our launcher sets it.
//   LOCKSTEP_MASTER_PORT   else this port of MASTER_ADDR's host, 127.0.0.1 if
//                          that is not set and all ranks are on one host.
//   all ranks on one host  else a folder in TMPDIR, or /tmp, whose name is made
//                          of the user and of what tells this run from others:
//                          torchrun's run id, restart and port, or mpirun's
//                          namespace, each with the launcher's process; srun's
//                          job and step; or MASTER_ADDR and MASTER_PORT.
//   several hosts          MASTER_PORT of MASTER_ADDR's host; under torchrun,
//                          whose agent has that port, the next one.
//
// A port asks for LOCKSTEP_TOKEN, which only loopback addresses can do without,
// and rank 0 listens at LOCKSTEP_LISTEN_ADDRESS if it is set.
//
// launcher: from FindLauncherProcess(), for torchrun and mpirun.
// Errors: kInvalidArgument, one line naming the variable that is missing or no
// port.
absl::StatusOr<MeetingPlace> ChooseMeetingPlace(
    const RankEnvironment& environment, EnvironmentLookup lookup,
    const ProcessIdentity& launcher);

// Joins the group of all ranks of `environment`, which ReadRankEnvironment()
// gives: a `processes` group, or a `tcp` group if they are on several hosts.
// They meet as ChooseMeetingPlace() says. Ranks that meet in a file, or form a
// `tcp` group, may call it again, all in the same order, for further groups.
//
// Where a rank of a `tcp` group listens: at LOCKSTEP_HOST_ADDRESS, if it is
// set; else at the address from which this host reaches rank 0's, or, if that
// is loopback while rank 0 listens at LOCKSTEP_LISTEN_ADDRESS, at the first
// address of this host that is not.
//
// Errors: those of ChooseMeetingPlace, of OpenFileRendezvous, of TcpRendezvous
// and of JoinProcessGroup or JoinTcpGroup.
absl::StatusOr<std::unique_ptr<Communicator>> JoinLaunchedGroup(
    const RankEnvironment& environment, const GroupOptions& options = {});

// How a rank waits for the others at a meeting place.
struct MeetingOptions {
  absl::Duration timeout = absl::Seconds(60);
  // Set as TcpRendezvousOptions::tell.
  std::function<void(const std::string& line)> tell = {};
};

// Joins the `tcp` group of the ranks that meet at `place`, a port. Errors:
// those of TcpRendezvous and of JoinTcpGroup.
absl::StatusOr<std::unique_ptr<Communicator>> JoinTcpGroupAt(
    const MeetingPlace& place, int rank, int world_size,
    const MeetingOptions& meeting, const GroupOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_CREATE_GROUP_H_
