#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda_elements.h"
#include "base/cuda_launch.h"
#include "base/data_types.h"
#include "models/cuda/block_reduce.h"
#include "models/cuda/kernel_types.h"
#include "models/cuda/softmax.h"

namespace lockstep {
namespace {

// One block a row.
template <typename T>
__global__ void __launch_bounds__(kMostReduceThreads)
    SoftmaxKernel(int64_t columns, float* scores, T* p) {
  __shared__ float shared[kMostReduceThreads];
  float* const row = scores + blockIdx.x * columns;
  T* const out = p + blockIdx.x * columns;
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
    out[i] = RoundTo<T>(row[i] / sum);
  }
}

// One block a row.
template <typename T>
__global__ void __launch_bounds__(kMostReduceThreads)
    SoftmaxBackwardKernel(int64_t columns, const T* p, const float* dp,
                          T* dscores) {
  __shared__ float shared[kMostReduceThreads];
  const T* const of_row = p + blockIdx.x * columns;
  const float* const row = dp + blockIdx.x * columns;
  T* const out = dscores + blockIdx.x * columns;
  float dot = 0;
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    dot += row[i] * ToFloat(of_row[i]);
  }
  dot = CombineBlock(dot, shared, Plus());
  for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
    out[i] = RoundTo<T>(ToFloat(of_row[i]) * (row[i] - dot));
  }
}

}  // namespace

absl::Status LoadSoftmaxKernels() {
  return ForActivations([]<typename T>(T) {
    return LoadKernels(SoftmaxKernel<T>, SoftmaxBackwardKernel<T>);
  });
}

absl::Status SoftmaxForward(DataType type, int64_t rows, int64_t columns,
                            float* scores, void* p, cudaStream_t stream) {
  return WithActivations(type, [&]<typename T>(T) {
    return LaunchGrid(dim3(static_cast<unsigned>(rows)), ReduceThreads(columns),
                      stream, "SoftmaxKernel launch", SoftmaxKernel<T>, columns,
                      scores, Elements<T>(p));
  });
}

absl::Status SoftmaxBackward(DataType type, int64_t rows, int64_t columns,
                             const void* p, const float* dp, void* dscores,
                             cudaStream_t stream) {
  return WithActivations(type, [&]<typename T>(T) {
    return LaunchGrid(dim3(static_cast<unsigned>(rows)), ReduceThreads(columns),
                      stream, "SoftmaxBackwardKernel launch",
                      SoftmaxBackwardKernel<T>, columns, Elements<T>(p), dp,
                      Elements<T>(dscores));
  });
}

}  // namespace lockstep
