// Ranks on GPUs, whose local batch norm is cuDNN's.
#include "benchmarks/syncbn/gpu_rank.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "benchmarks/syncbn/cuda_rank.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
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
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                            JoinSyncBnRanks(group_options));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<SyncBnCudaRank> rank,
      SyncBnCudaRank::Create(*group, group_options, CreateCudnn));
  return ServeSyncBnTurns(
      listener, *group,
      [&rank](const SyncBnRequest& request) { return rank->Take(request); });
}

}  // namespace lockstep::benchmarks
