// Ranks on GPUs, whose local batch norm is cuDNN's.
#include "benchmarks/syncbn/gpu_rank.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/syncbn/cuda_rank.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/cudnn_batch_norm.h"

namespace lockstep::benchmarks {
namespace {

absl::StatusOr<std::unique_ptr<BatchNorm>> CreateCudnn(
    const BatchNormOptions& options, CudaBatchNormKernels& kernels) {
  return CudnnBatchNorm::Create(options, kernels);
}

}  // namespace

absl::Status CheckGpu() { return CountGpus().status(); }

absl::Status RunSyncBnGpuRank(const std::string& listener,
                              const SyncBnRankOptions& options) {
  GroupOptions group_options;
  group_options.timeout = options.timeout;
  const auto serve = [&](Communicator& group) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<SyncBnCudaRank> rank,
        SyncBnCudaRank::Create(group, group_options, CreateCudnn));
    return ServeTurns<SyncBnRequest>(
        listener, {group.rank(), group.world_size()},
        [&rank](const SyncBnRequest& request) { return rank->Take(request); });
  };
  return RunAsRanks(RankKind::kProcesses, /*world_size=*/0, group_options,
                    serve);
}

}  // namespace lockstep::benchmarks
