// Dropout and stochastic depth on a GPU.
#ifndef LOCKSTEP_MODELS_CUDA_DROPOUT_H_
#define LOCKSTEP_MODELS_CUDA_DROPOUT_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "models/cuda/step_numbers.h"
#include "models/program/random_mask.h"

namespace lockstep {

// The key of a layer's masks in a step on a GPU.
struct DeviceMaskKey {
  MaskKey key;
  // The seed and the step, in device memory; null: those of the key.
  const StepNumbers* numbers = nullptr;
};

// Arrays are [n, size] of `type` in device memory: n samples. Arithmetic is
// float32, and a result is rounded once. All calls enqueue on a stream of the
// current device. Errors: kUnimplemented for a type that is not float32,
// float16 or bfloat16; those of the launches.

// Loads the kernels now. Otherwise the first launch of each waits for the
// device.
absl::Status LoadDropoutKernels();

// to = from / (1 - rate) where the mask keeps an element, else 0. Both may be
// the same memory. The gradient is the same function of the output's gradient.
absl::Status DropOutOnGpu(const DeviceMaskKey& key, DataType type, int64_t n,
                          int64_t size, const void* from, void* to,
                          cudaStream_t stream);

// y = x + factor * branch. A sample's factor is 0 if the mask does not keep
// its element 0, else 1 / (1 - rate).
absl::Status AddBranch(const DeviceMaskKey& key, DataType type, int64_t n,
                       int64_t size, const void* x, const void* branch, void* y,
                       cudaStream_t stream);

// The gradients: dbranch = factor * dy and dx = dy. dx may be dy, or null.
absl::Status AddBranchBackward(const DeviceMaskKey& key, DataType type,
                               int64_t n, int64_t size, const void* dy,
                               void* dx, void* dbranch, cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_DROPOUT_H_
