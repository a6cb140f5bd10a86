// The softmax of attention on a GPU.
#ifndef LOCKSTEP_MODELS_CUDA_SOFTMAX_H_
#define LOCKSTEP_MODELS_CUDA_SOFTMAX_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/data_types.h"

namespace lockstep {

// Loads the kernels now. Otherwise the first launch of each waits for the
// device.
absl::Status LoadSoftmaxKernels();

// Enqueues p = softmax(scores) for each row of [rows, columns]. A NaN makes its
// row NaN. Memory is device memory: p of `type`, rounded once, and scores of
// float32, which are overwritten. For float32, p may be the scores' memory.
// stream: of the current device. Errors: kUnimplemented for a type that is not
// float32, float16 or bfloat16; those of the launch.
absl::Status SoftmaxForward(DataType type, int64_t rows, int64_t columns,
                            float* scores, void* p, cudaStream_t stream);

// Enqueues, for each row, dscores = p * (dp - sum(dp * p)): the gradient of the
// softmax's input from that of its output p. p and dscores are of `type`, dp is
// float32. For float32, dscores may be dp's memory. Errors: as for
// SoftmaxForward.
absl::Status SoftmaxBackward(DataType type, int64_t rows, int64_t columns,
                             const void* p, const float* dp, void* dscores,
                             cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_SOFTMAX_H_
