// Where CUDA, NCCL or cuDNN is not installed.
#include <string>

#include "absl/status/status.h"
#include "benchmarks/syncbn/gpu_rank.h"

namespace lockstep::benchmarks {

absl::Status CheckGpu() {
  return absl::FailedPreconditionError(
      "this program was built without CUDA, NCCL and cuDNN, which "
      "--backend=nccl needs");
}

absl::Status RunSyncBnGpuRank(const std::string& /*listener*/,
                              const SyncBnRankOptions& /*options*/) {
  return CheckGpu();
}

}  // namespace lockstep::benchmarks
