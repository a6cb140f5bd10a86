// Layer norm on a GPU.
#ifndef LOCKSTEP_MODELS_CUDA_LAYER_NORM_H_
#define LOCKSTEP_MODELS_CUDA_LAYER_NORM_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/data_types.h"

namespace lockstep {

// Rows of channels, each of which is normalised by itself.
struct LayerNormShape {
  int64_t rows = 0;
  int64_t channels = 1;
  float epsilon = 0;
  DataType type = DataType::kFloat32;  // Of x, y and their gradients.
};

// The mean of a row, and 1 / sqrt(variance + epsilon).
struct RowStatistics {
  float mean;
  float inverse_deviation;
};

// Loads the kernels now. Otherwise the first launch of each waits for the
// device.
absl::Status LoadLayerNormKernels();

// Enqueues y = (x - mean) * inverse_deviation * weight + bias. x and y are
// [rows, channels], weight and bias [channels]; `statistics` [rows] is for the
// backward pass. All memory is device memory: x and y of shape.type, weight and
// bias of float32. Arithmetic is float32. stream: of the current device.
// Errors: kUnimplemented for a type that is not float32, float16 or bfloat16;
// those of the launch.
absl::Status LayerNormForward(const LayerNormShape& shape, const void* x,
                              const float* weight, const float* bias, void* y,
                              RowStatistics* statistics, cudaStream_t stream);

// Returns the bytes of scratch memory that the gradients of weight and bias
// need.
int64_t LayerNormScratchBytes(const LayerNormShape& shape);

// Enqueues dweight[c] = the sum over rows of dy * (x - mean) *
// inverse_deviation, and dbias[c] = that of dy. The order of additions depends
// only on the shape. scratch: [LayerNormScratchBytes]. Errors: as for
// LayerNormForward.
absl::Status LayerNormBackwardParameters(const LayerNormShape& shape,
                                         const void* x,
                                         const RowStatistics* statistics,
                                         const void* dy, float* dweight,
                                         float* dbias, float* scratch,
                                         cudaStream_t stream);

// Enqueues dx = the gradient of x. dx may be dy. Errors: as for
// LayerNormForward.
absl::Status LayerNormBackwardInput(const LayerNormShape& shape, const void* x,
                                    const float* weight,
                                    const RowStatistics* statistics,
                                    const void* dy, void* dx,
                                    cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_LAYER_NORM_H_
