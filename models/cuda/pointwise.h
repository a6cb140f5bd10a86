// Element-wise work of a training step on a GPU.
#ifndef LOCKSTEP_MODELS_CUDA_POINTWISE_H_
#define LOCKSTEP_MODELS_CUDA_POINTWISE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

namespace lockstep {

// All memory is device float32; all calls enqueue on a stream of the current
// device. Errors: those of the launches.

// Returns the bytes of scratch memory that BiasReluBackward needs.
int64_t BiasReluScratchBytes(int64_t rows, int64_t channels);

// The gradient of y = relu(z + bias), or of y = z + bias if `y` is null, for
// rows of channels. Replaces dy [rows, channels] by the gradient of z: dy where
// y is positive, otherwise 0. Stores the sum of its rows in dbias [channels],
// unless that is null. The order of additions depends only on the sizes: a
// block adds a run of rows, and the blocks' sums are added in order. scratch:
// [BiasReluScratchBytes].
absl::Status BiasReluBackward(int64_t rows, int64_t channels, const float* y,
                              float* dy, float* dbias, float* scratch,
                              cudaStream_t stream);

// sum[i] += part[i].
absl::Status AddInto(int64_t count, const float* part, float* sum,
                     cudaStream_t stream);

// values[i] -= learning_rate * gradients[i]. The product is rounded, then the
// difference, so the bits are those of SgdUpdate
// (models/train/data_parallel.h).
absl::Status SgdUpdateOnGpu(int64_t count, float* values,
                            const float* gradients, float learning_rate,
                            cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_POINTWISE_H_
