// A group of ranks, by the name of its backend.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_CREATE_GROUP_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_CREATE_GROUP_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"

namespace lockstep {

// The ranks of a group that this process holds, in rank order.
using LocalRanks = std::vector<std::unique_ptr<Communicator>>;

// Creates or joins a group, and returns once all of its ranks have joined:
//
//   threads    world_size ranks, all of them here: use each from a thread
//              of its own.
//   processes  one rank: a launcher (//collectives:launch, torchrun, mpirun,
//              srun) started this process as one of world_size on this host,
//              and its environment says which.
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

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_CREATE_GROUP_H_
