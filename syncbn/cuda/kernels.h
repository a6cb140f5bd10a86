// The kernels of batch norm, as functions that enqueue them. BatchNormKernels
// has their contracts.
//
// All: on a stream of the current device; only enqueue. Scratch memory is
// device memory, aligned to 16, that must live until the stream has come past.
// B is the bytes of one tensor of activations. Errors: kUnimplemented for
// activations other than float32, float16 and bfloat16, and for statistics
// other than float32; what the launches say.
#ifndef LOCKSTEP_SYNCBN_CUDA_KERNELS_H_
#define LOCKSTEP_SYNCBN_CUDA_KERNELS_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/collective.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// Bytes of scratch memory that ComputeMoments needs: 16 for each block and
// channel, less than B / 16 where channels have more than some hundred values.
absl::StatusOr<int64_t> MomentsScratchBytes(const ActivationShape& shape,
                                            ConstBuffer x);

// scratch: [MomentsScratchBytes]. Moves: reads B.
absl::Status ComputeMoments(const ActivationShape& shape, ConstBuffer x,
                            std::byte* record, std::byte* scratch,
                            cudaStream_t stream);

// BatchNormKernels::Merge but for the wait: the values per channel of all ranks
// are the count of `saved`. This and the next two move tens of bytes a channel.
absl::Status MergeRecords(const StatisticsRecord& record,
                          const std::byte* gathered, int ranks,
                          const MergeOptions& options,
                          const RunningStatistics& running, std::byte* saved,
                          cudaStream_t stream);

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

// max_blocks: thread blocks at most, which does not change the result.
// Moves: reads B for x, and B for the residual if there is one; writes B.
absl::Status Normalize(const BatchNormKernels::NormalizeCall& call,
                       int64_t max_blocks, cudaStream_t stream);

// Bytes of scratch memory that BackwardReduce needs: 8 for each block and
// channel.
absl::StatusOr<int64_t> BackwardReduceScratchBytes(
    const BatchNormKernels::BackwardCall& call);

// scratch: [BackwardReduceScratchBytes].
// Moves: reads B for x, B for dy, and B for y with ReLU.
absl::Status BackwardReduce(const BatchNormKernels::BackwardCall& call,
                            Buffer sums, Buffer dweight, Buffer dbias,
                            std::byte* scratch, cudaStream_t stream);

// max_blocks: as for Normalize.
// Moves: reads B for x, B for dy, and B for y with ReLU; writes B for dx, and B
// for dresidual if wanted.
absl::Status BackwardInput(const BatchNormKernels::BackwardCall& call,
                           ConstBuffer sums, Buffer dx, Buffer dresidual,
                           int64_t max_blocks, cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_KERNELS_H_
