// Element-wise operations of batch norm on a GPU.
#ifndef LOCKSTEP_SYNCBN_CUDA_ELEMENTWISE_H_
#define LOCKSTEP_SYNCBN_CUDA_ELEMENTWISE_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// How many blocks the operations get.
struct ElementwiseGrid {
  int64_t multiprocessors = 1;
  int64_t max_blocks = 0;  // 0: as many as keep the multiprocessors busy.
};

// Loads the kernels now. Otherwise the first launch of each waits for the
// device.
absl::Status LoadElementwiseKernels();

// Enqueue CudaBatchNormKernels::Normalize and BackwardInput on a stream of the
// current device. Errors: kUnimplemented for other types and layouts than
// CudaBatchNormKernels supports; those of the launches.
absl::Status NormalizeOnGpu(const BatchNormKernels::NormalizeCall& call,
                            const ElementwiseGrid& grid, cudaStream_t stream);
absl::Status InputGradientOnGpu(const BatchNormKernels::BackwardCall& call,
                                const ElementwiseGrid& grid,
                                cudaStream_t stream);

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_ELEMENTWISE_H_
