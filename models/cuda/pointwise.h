// Element-wise work of a training step on a GPU.
#ifndef LOCKSTEP_MODELS_CUDA_POINTWISE_H_
#define LOCKSTEP_MODELS_CUDA_POINTWISE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "models/cuda/loss_scale.h"

namespace lockstep {

// All memory is device memory, of float32 or, as `void`, of activations of the
// type that is named. Arithmetic and sums are float32; an activation is rounded
// once, when it is stored. All calls enqueue on a stream of the current device.
// Errors: kUnimplemented for activations that are not float32, float16 or
// bfloat16; those of the launches.

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
absl::Status BiasReluBackward(DataType type, int64_t rows, int64_t channels,
                              const void* y, void* dy, float* dbias,
                              float* scratch, cudaStream_t stream);

// total[c] = the sum over runs of sums [runs, channels], in their order.
absl::Status AddRuns(int64_t runs, int64_t channels, const float* sums,
                     float* total, cudaStream_t stream);

// y = x * Phi(x), where Phi is the normal distribution's, and dx = dy * (Phi(x)
// + x * Phi'(x)). dx may be dy.
absl::Status GeluForward(DataType type, int64_t count, const void* x, void* y,
                         cudaStream_t stream);
absl::Status GeluBackward(DataType type, int64_t count, const void* x,
                          const void* dy, void* dx, cudaStream_t stream);

// sum[i] += part[i].
absl::Status AddInto(DataType type, int64_t count, const void* part, void* sum,
                     cudaStream_t stream);

// narrow[i] = wide[i], rounded to nearest, ties to even; and wide[i] =
// narrow[i], which is exact.
absl::Status RoundOnGpu(DataType type, int64_t count, const float* wide,
                        void* narrow, cudaStream_t stream);
absl::Status WidenOnGpu(DataType type, int64_t count, const void* narrow,
                        float* wide, cudaStream_t stream);

// values[i] -= *learning_rate * gradients[i]. The product is rounded, then the
// difference, so the bits are those of SgdUpdate (models/optimizer.h). scale:
// if it is not null and its `overflows` is set, nothing changes.
absl::Status SgdUpdateOnGpu(int64_t count, float* values,
                            const float* gradients, const float* learning_rate,
                            const LossScale* scale, cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_POINTWISE_H_
