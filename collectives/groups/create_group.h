// Creates groups of ranks by the name of their backend, and joins the ranks
// that a launcher started into a group.
#ifndef LOCKSTEP_COLLECTIVES_GROUPS_CREATE_GROUP_H_
#define LOCKSTEP_COLLECTIVES_GROUPS_CREATE_GROUP_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "collectives/groups/rank_environment.h"
#include "collectives/groups/rendezvous_location.h"

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

#endif  // LOCKSTEP_COLLECTIVES_GROUPS_CREATE_GROUP_H_
