// Hands each operation to the file that has its loops.
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/collective.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/loops.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {

absl::StatusOr<std::shared_ptr<std::byte>> CpuBatchNormKernels::Allocate(
    int64_t bytes) {
  return AllocateHost(bytes);
}

absl::Status CpuBatchNormKernels::ComputeMoments(const ActivationShape& shape,
                                                 ConstBuffer x,
                                                 std::byte* record) {
  return ComputeBatchMoments(shape, x, unit_, scratch_, record);
}

absl::Status CpuBatchNormKernels::Normalize(const NormalizeCall& call) {
  return NormalizeBatch(call, unit_, scratch_);
}

absl::Status CpuBatchNormKernels::BackwardReduce(const BackwardCall& call,
                                                 Buffer sums, Buffer dweight,
                                                 Buffer dbias) {
  return ReduceBackward(call, sums, dweight, dbias, unit_, scratch_);
}

absl::Status CpuBatchNormKernels::BackwardInput(const BackwardCall& call,
                                                ConstBuffer sums, Buffer dx,
                                                Buffer dresidual) {
  return BackwardToInput(call, sums, dx, dresidual, unit_, scratch_);
}

absl::StatusOr<int64_t> CpuBatchNormKernels::Merge(
    const StatisticsRecord& record, const std::byte* gathered, int ranks,
    const MergeOptions& options, const RunningStatistics& running,
    std::byte* saved) {
  return MergeRecords(record, gathered, ranks, options, running, saved);
}

absl::Status CpuBatchNormKernels::UseRunning(const StatisticsRecord& record,
                                             const RunningStatistics& running,
                                             double epsilon, std::byte* saved) {
  UseRunningStatistics(record, running, epsilon, saved);
  return absl::OkStatus();
}

}  // namespace lockstep
