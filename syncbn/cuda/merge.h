// The per-channel kernels of batch norm: merging ranks' statistics, and the
// running statistics.
#ifndef LOCKSTEP_SYNCBN_CUDA_MERGE_H_
#define LOCKSTEP_SYNCBN_CUDA_MERGE_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// All: on a stream of the current device; only enqueue. Statistics of float32:
// for another type, kUnimplemented. Other errors: what the launch says. They
// move tens of bytes a channel.

// BatchNormKernels::Merge but for the wait: the values per channel of all ranks
// are the count of `saved`.
absl::Status MergeRecords(const StatisticsRecord& record,
                          const std::byte* gathered, int ranks,
                          const MergeOptions& options,
                          const RunningStatistics& running, std::byte* saved,
                          cudaStream_t stream);

// BatchNormKernels::UseRunning.
absl::Status UseRunning(const StatisticsRecord& record,
                        const RunningStatistics& running, double epsilon,
                        std::byte* saved, cudaStream_t stream);

// Lets a batch of `count` values per channel, at least 2, with the mean and the
// unbiased variance [c] in device float32, enter the running statistics with
// its variance divided by count: for libraries that know the unbiased one
// alone.
absl::Status TrackBiased(const StatisticsRecord& record, const float* mean,
                         const float* unbiased_variance, int64_t count,
                         double weight_of_batch,
                         const RunningStatistics& running, cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_MERGE_H_
