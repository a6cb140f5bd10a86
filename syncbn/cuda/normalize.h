// The forward element-wise kernel of batch norm.
#ifndef LOCKSTEP_SYNCBN_CUDA_NORMALIZE_H_
#define LOCKSTEP_SYNCBN_CUDA_NORMALIZE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// BatchNormKernels::Normalize on a stream of the current device; only enqueues.
// max_blocks: thread blocks at most, which does not change the result.
// Moves: reads B for x, and B for the residual if there is one; writes B.
// Errors: kUnimplemented for a type other than float32, float16, bfloat16; what
// the launch says.
absl::Status Normalize(const BatchNormKernels::NormalizeCall& call,
                       int64_t max_blocks, cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_NORMALIZE_H_
