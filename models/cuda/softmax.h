// The softmax of attention on a GPU.
#ifndef LOCKSTEP_MODELS_CUDA_SOFTMAX_H_
#define LOCKSTEP_MODELS_CUDA_SOFTMAX_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

namespace lockstep {

// Loads the kernels now. Otherwise the first launch of each waits for the
// device.
absl::Status LoadSoftmaxKernels();

// Enqueues, for each row of p [rows, columns], p = softmax(p). A NaN makes its
// row NaN. Memory is device float32. stream: of the current device. Errors:
// those of the launch.
absl::Status SoftmaxForward(int64_t rows, int64_t columns, float* p,
                            cudaStream_t stream);

// Enqueues, for each row, dp = p * (dp - sum(dp * p)): the gradient of the
// softmax's input in place of that of its output p. Errors: those of the
// launch.
absl::Status SoftmaxBackward(int64_t rows, int64_t columns, const float* p,
                             float* dp, cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_SOFTMAX_H_
