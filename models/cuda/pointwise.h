// Element-wise work of a training step on a GPU.
#ifndef LOCKSTEP_MODELS_CUDA_POINTWISE_H_
#define LOCKSTEP_MODELS_CUDA_POINTWISE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

namespace lockstep {

// All memory is device float32; all calls enqueue on a stream of the current
// device. Errors: those of the launches.

// Loads the kernels now. Otherwise the first launch of each waits for the
// device.
absl::Status LoadPointwiseKernels();

// Returns the bytes of scratch memory that BiasReluBackward needs.
int64_t BiasReluScratchBytes(int64_t rows, int64_t channels);

// The gradient of y = relu(z + bias), or of y = z + bias if `y` is null, for
// rows of channels. Replaces dy [rows, channels] by the gradient of z: 0 where
// y is not positive, otherwise dy. Stores the sum of its rows in dbias
// [channels], unless that is null. A NaN in y keeps the gradient, as in batch
// norm. The order of additions depends only on the sizes: a block adds a run of
// rows, and the blocks' sums are added in order. scratch:
// [BiasReluScratchBytes].
absl::Status BiasReluBackward(int64_t rows, int64_t channels, const float* y,
                              float* dy, float* dbias, float* scratch,
                              cudaStream_t stream);

// total[c] = the sum over runs of sums [runs, channels], in their order.
absl::Status AddRuns(int64_t runs, int64_t channels, const float* sums,
                     float* total, cudaStream_t stream);

// y = x * Phi(x), where Phi is the normal distribution's, and dx = dy * (Phi(x)
// + x * Phi'(x)). dx may be dy.
absl::Status GeluForward(int64_t count, const float* x, float* y,
                         cudaStream_t stream);
absl::Status GeluBackward(int64_t count, const float* x, const float* dy,
                          float* dx, cudaStream_t stream);

// sum[i] += part[i].
absl::Status AddInto(int64_t count, const float* part, float* sum,
                     cudaStream_t stream);

// values[i] -= *learning_rate * gradients[i]. The product is rounded, then the
// difference, so the bits are those of SgdUpdate
// (models/train/data_parallel.h).
absl::Status SgdUpdateOnGpu(int64_t count, float* values,
                            const float* gradients, const float* learning_rate,
                            cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_POINTWISE_H_
