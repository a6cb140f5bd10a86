#include "collectives/nccl/nccl_group.h"

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/launch/create_group.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/nccl/nccl_communicator.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<NcclCommunicator>> JoinNcclGroup(
    NcclOptions options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RankEnvironment environment,
                            RequireRankEnvironment());
  // First, so that the others miss a rank without a GPU at once.
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> control,
                            JoinLaunchedGroup(environment, options.group));
  LOCKSTEP_ASSIGN_OR_RETURN(options.device,
                            DeviceOfRank(environment.local_rank));
  return NcclCommunicator::Create(std::move(control), options);
}

namespace {

[[maybe_unused]] const bool kRegistered =
    RegisterBackend("nccl", [](const GroupOptions& options) {
      return JoinNcclGroup({.group = options});
    });

}  // namespace
}  // namespace lockstep
