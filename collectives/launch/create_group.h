// Creates groups of ranks by the name of their backend. For ranks that a
// launcher started, decides where they meet and joins them into a group.
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

// The ranks of a group that live in this process, in rank order.
using LocalRanks = std::vector<std::unique_ptr<Communicator>>;

// Creates or joins a group, and returns once all of its ranks have joined:
//
//   threads    world_size ranks, all of them in this process. Each rank is
//              used from a thread of its own.
//   processes  one rank. A launcher (//collectives:launch, torchrun, mpirun,
//              srun) started this process as one of world_size processes, and
//              the environment says which. If the ranks are on several hosts,
//              the backend is tcp.
//   tcp        as processes, but uses TCP on one host too (tcp/tcp_group.h).
//   mpi        one rank: mpirun or srun started this process. For programs that
//              depend on //collectives/mpi:mpi_group.
//   nccl       one rank, with buffers in the memory of GPU number LOCAL_RANK.
//              If there are fewer GPUs, several ranks share one. For programs
//              that depend on //collectives/nccl:nccl_group.
//
// world_size: 0 takes the launcher's world size; `threads` then has one rank
// for each core that this process may use, up to kMaxWorldSize.
//
// Errors: kInvalidArgument if the backend is unknown, or if the launcher
// started a different number of ranks; kUnimplemented, naming the library, if
// this program was not linked with the backend; kFailedPrecondition if the
// backend needs a launcher and none started this process; those of the backend.
absl::StatusOr<LocalRanks> CreateGroup(absl::string_view backend,
                                       int world_size = 0,
                                       const GroupOptions& options = {});

// Registers a backend for CreateGroup, before main(). Libraries with heavy
// dependencies register themselves, so that only programs that link them pay
// for those dependencies. factory: joins the group as this process's one rank.
// Returns true.
using BackendFactory =
    std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
        const GroupOptions& options)>;
bool RegisterBackend(absl::string_view name, BackendFactory factory);

// Returns the nearest ancestor of this process that does not belong to this
// rank: its environment does not hold every one of `variables` with this
// process's value. All ranks that one launcher started on this host find the
// same process, even if shells or other programs run between launcher and rank.
//
// variables: the names of the variables that tell one rank from another and one
// launcher from another.
ProcessIdentity FindLauncherProcess(
    std::span<const absl::string_view> variables);

// The place where ranks meet: a file, or a port of rank 0's host.
struct RendezvousLocation {
  // At most one of `file` and `folder` is set. If both are empty, ranks meet at
  // the port.
  std::string file = {};  // An existing file, or one that any rank may create.
  std::string folder = {};  // A private folder, to be created, for a file.
  std::string address = {};
  int port = 0;
  std::string listen_address = {};
  std::string token = {};

  friend bool operator==(const RendezvousLocation&,
                         const RendezvousLocation&) = default;
};

// Returns the meeting place. All ranks of a run choose the same one without
// communicating. The first rule that applies decides:
//
//   LOCKSTEP_RENDEZVOUS    if all ranks are on one host: the file of that path.
//                          Our launcher sets this variable.
//   LOCKSTEP_MASTER_PORT   this port of MASTER_ADDR's host, or of 127.0.0.1 if
//                          MASTER_ADDR is not set and all ranks are on one
//                          host.
//   all ranks on one host  a folder in TMPDIR, or in /tmp. Its name consists of
//                          the user and a hash of the variables that tell this
//                          run from others: torchrun's run id, restart and
//                          port, or mpirun's namespace, each with the
//                          launcher's process; srun's job and step; or
//                          MASTER_ADDR and MASTER_PORT.
//   several hosts          MASTER_PORT of MASTER_ADDR's host. Under torchrun,
//                          whose agent uses that port, the next port.
//
// A port needs LOCKSTEP_TOKEN, unless its address is a loopback address. Rank 0
// listens at LOCKSTEP_LISTEN_ADDRESS if that is set.
//
// launcher: the result of FindLauncherProcess(), for torchrun and mpirun.
// Errors: kInvalidArgument, one line that names the variable that is missing or
// is not a port.
absl::StatusOr<RendezvousLocation> ChooseRendezvousLocation(
    const RankEnvironment& environment, EnvironmentLookup lookup,
    const ProcessIdentity& launcher);

// Joins the group of all ranks of `environment`, which ReadRankEnvironment()
// returns. The group is a `processes` group, or a `tcp` group if the ranks are
// on several hosts. The ranks meet as ChooseRendezvousLocation() says. Ranks
// that meet in a file, or form a `tcp` group, may call this function again for
// further groups; all ranks must make these calls in the same order.
//
// A rank of a `tcp` group listens at LOCKSTEP_HOST_ADDRESS, if it is set.
// Otherwise it listens at the address from which this host reaches rank 0's. If
// that is a loopback address and rank 0 listens at a LOCKSTEP_LISTEN_ADDRESS
// that is not, it listens at this host's first address that is not loopback.
//
// Errors: those of ChooseRendezvousLocation, of OpenFileRendezvous, of
// TcpRendezvous and of JoinProcessGroup or JoinTcpGroup.
absl::StatusOr<std::unique_ptr<Communicator>> JoinLaunchedGroup(
    const RankEnvironment& environment, const GroupOptions& options = {});

// How a rank waits for the other ranks at a meeting place.
struct MeetingOptions {
  absl::Duration timeout = absl::Seconds(60);
  // Used as TcpRendezvousOptions::tell.
  std::function<void(const std::string& line)> tell = {};
};

// Joins the `tcp` group of the ranks that meet at `place`, which must be a
// port. Errors: those of TcpRendezvous and of JoinTcpGroup.
absl::StatusOr<std::unique_ptr<Communicator>> JoinTcpGroupAt(
    const RendezvousLocation& place, int rank, int world_size,
    const MeetingOptions& meeting, const GroupOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_CREATE_GROUP_H_
