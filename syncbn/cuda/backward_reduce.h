// The backward reduction kernels of batch norm.
#ifndef LOCKSTEP_SYNCBN_CUDA_BACKWARD_REDUCE_H_
#define LOCKSTEP_SYNCBN_CUDA_BACKWARD_REDUCE_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/buffer.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// Bytes of scratch memory that BackwardReduce needs, and errors, as in
// statistics.h.
absl::StatusOr<int64_t> BackwardReduceScratchBytes(
    const BatchNormKernels::BackwardCall& call);

// BatchNormKernels::BackwardReduce on a stream of the current device; only
// enqueues. scratch: device memory [BackwardReduceScratchBytes], aligned to 16;
// it must live until the stream has come past.
// Moves: reads B for x, B for dy, and B for y with ReLU.
// Errors: as above; what the launches say.
absl::Status BackwardReduce(const BatchNormKernels::BackwardCall& call,
                            Buffer sums, Buffer dweight, Buffer dbias,
                            std::byte* scratch, cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_BACKWARD_REDUCE_H_
