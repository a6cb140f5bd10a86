// The group of the GPUs of launched ranks. CreateGroup("nccl") is
// JoinNcclGroup() in programs that are linked with this.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_GROUP_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "collectives/nccl/nccl_communicator.h"

namespace lockstep {

// Joins the `nccl` group of all ranks that a launcher started on this host. A
// rank has GPU number LOCAL_RANK modulo the number of GPUs that it sees, in
// place of options.device. Its control group is that of JoinLaunchedGroup, with
// options.group; for ranks on several hosts, give NcclCommunicator::Create one
// of JoinMpiGroup.
//
// Errors: kFailedPrecondition if no launcher started this process; kNotFound
// without a GPU; those of JoinLaunchedGroup and of NcclCommunicator::Create.
absl::StatusOr<std::unique_ptr<NcclCommunicator>> JoinNcclGroup(
    NcclOptions options = {});

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_GROUP_H_
