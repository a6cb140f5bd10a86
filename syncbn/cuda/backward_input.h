// The backward element-wise kernel of batch norm.
#ifndef LOCKSTEP_SYNCBN_CUDA_BACKWARD_INPUT_H_
#define LOCKSTEP_SYNCBN_CUDA_BACKWARD_INPUT_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "collectives/buffer.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// BatchNormKernels::BackwardInput on a stream of the current device; only
// enqueues. max_blocks: as in normalize.h.
// Moves: reads B for x, B for dy, and B for y with ReLU; writes B for dx, and B
// for dresidual if wanted.
// Errors: as in normalize.h.
absl::Status BackwardInput(const BatchNormKernels::BackwardCall& call,
                           ConstBuffer sums, Buffer dx, Buffer dresidual,
                           int64_t max_blocks, cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_BACKWARD_INPUT_H_
