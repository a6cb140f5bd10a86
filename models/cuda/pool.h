// Pooling on a GPU.
#ifndef LOCKSTEP_MODELS_CUDA_POOL_H_
#define LOCKSTEP_MODELS_CUDA_POOL_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "models/model.h"

namespace lockstep {

// Windows of kernel_h x kernel_w over images x, as in PoolOp. y has a value for
// each window. Neither tensor may have 2^31 elements or more.
struct PoolShape {
  Shape x;
  Shape y;
  bool maximum = false;
  int64_t kernel_h = 1;  // The kernel has at most 256 positions.
  int64_t kernel_w = 1;
  int64_t stride_h = 1;
  int64_t stride_w = 1;
  int64_t padding = 0;                 // 0 unless `maximum`.
  DataType type = DataType::kFloat32;  // Of both tensors.
};

// Loads the kernels now. Otherwise the first launch of each waits for the
// device.
absl::Status LoadPoolKernels();

// Enqueues y = pool(x). With `maximum`, `winners` [y.size()] receives the
// position of each window's first highest element, in the kernel's row-major
// order, for the backward pass. A window with a NaN gives a NaN. Tensors are
// device memory of shape.type, channels last; sums are float32. stream: of the
// current device. Errors: kInvalidArgument for shapes outside the limits above;
// kUnimplemented for a type that is not float32, float16 or bfloat16; those of
// the launch.
absl::Status PoolForward(const PoolShape& shape, const void* x, void* y,
                         uint8_t* winners, cudaStream_t stream);

// Enqueues dx = the gradient of x. Each element of x adds the windows that it
// is in, row by row, so the bits do not depend on the order of threads. Errors:
// as for PoolForward.
absl::Status PoolBackward(const PoolShape& shape, const void* dy,
                          const uint8_t* winners, void* dx,
                          cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_POOL_H_
