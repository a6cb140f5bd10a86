#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda_launch.h"
#include "models/cuda/block_reduce.h"
#include "models/cuda/softmax.h"

namespace lockstep {
namespace {

// One block a row.
__global__ void __launch_bounds__(kMostReduceThreads)
    SoftmaxKernel(int64_t columns, float* p) {
  __shared__ float shared[kMostReduceThreads];
  float* const row = p + blockIdx.x * columns;
  float highest = -INFINITY;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    highest = Highest()(highest, row[i]);
  }
  highest = CombineBlock(highest, shared, Highest());
  float sum = 0;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    row[i] = expf(row[i] - highest);
    sum += row[i];
  }
  sum = CombineBlock(sum, shared, Plus());
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    row[i] /= sum;
  }
}

// One block a row.
__global__ void __launch_bounds__(kMostReduceThreads)
    SoftmaxBackwardKernel(int64_t columns, const float* p, float* dp) {
  __shared__ float shared[kMostReduceThreads];
  const float* const of_row = p + blockIdx.x * columns;
  float* const row = dp + blockIdx.x * columns;
  float dot = 0;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    dot += row[i] * of_row[i];
  }
  dot = CombineBlock(dot, shared, Plus());
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    row[i] = of_row[i] * (row[i] - dot);
  }
}

}  // namespace

absl::Status LoadSoftmaxKernels() {
  return LoadKernels(SoftmaxKernel, SoftmaxBackwardKernel);
}

absl::Status SoftmaxForward(int64_t rows, int64_t columns, float* p,
                            cudaStream_t stream) {
  return LaunchGrid(dim3(static_cast<unsigned>(rows)), ReduceThreads(columns),
                    stream, "SoftmaxKernel launch", SoftmaxKernel, columns, p);
}

absl::Status SoftmaxBackward(int64_t rows, int64_t columns, const float* p,
                             float* dp, cudaStream_t stream) {
  return LaunchGrid(dim3(static_cast<unsigned>(rows)), ReduceThreads(columns),
                    stream, "SoftmaxBackwardKernel launch",
                    SoftmaxBackwardKernel, columns, p, dp);
}

}  // namespace lockstep
