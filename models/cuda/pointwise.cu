#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda_launch.h"
#include "models/cuda/column_sums.h"
#include "models/cuda/pointwise.h"

namespace lockstep {
namespace {

constexpr int kThreads = kThreadsOver;

// The gradient of z in relu(z + bias), which replaces dy.
struct BiasReluTerm {
  const float* y;  // Null: without ReLU.
  float* dy;
  int channels;

  __device__ void operator()(int64_t row, int channel,
                             float (&values)[1]) const {
    const int64_t i = row * channels + channel;
    float gradient = dy[i];
    if (y != nullptr) {
      gradient = y[i] <= 0 ? 0 : gradient;
      dy[i] = gradient;
    }
    values[0] = gradient;
  }
};

__global__ void __launch_bounds__(kColumnThreads)
    BiasReluKernel(RowRuns runs, BiasReluTerm term, float* sums) {
  SumColumns<1>(runs, term, {sums});
}

// Adds the sums of all runs.
__global__ void __launch_bounds__(kThreads)
    AddRunsKernel(int runs, int channels, const float* sums, float* total) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t channel = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; channel < channels; channel += step) {
    float sum = 0;
    for (int run = 0; run < runs; ++run) {
      sum += sums[int64_t{run} * channels + channel];
    }
    total[channel] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    AddIntoKernel(int64_t count, const float* part, float* sum) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) sum[i] += part[i];
}

// Returns Phi(x) = erfc(-x / sqrt(2)) / 2, which does not cancel.
__device__ inline float NormalCdf(float x) {
  constexpr float kInverseSqrt2 = 0.70710678f;
  return 0.5f * erfcf(-x * kInverseSqrt2);
}

__global__ void __launch_bounds__(kThreads)
    GeluKernel(int64_t count, const float* x, float* y) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) y[i] = x[i] * NormalCdf(x[i]);
}

__global__ void __launch_bounds__(kThreads)
    GeluBackwardKernel(int64_t count, const float* x, const float* dy,
                       float* dx) {
  constexpr float kInverseSqrt2Pi = 0.39894228f;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) {
    const float density = kInverseSqrt2Pi * expf(-0.5f * x[i] * x[i]);
    dx[i] = dy[i] * (NormalCdf(x[i]) + x[i] * density);
  }
}

__global__ void __launch_bounds__(kThreads)
    SgdKernel(int64_t count, float* values, const float* gradients,
              const float* learning_rate) {
  const float rate = *learning_rate;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) {
    values[i] = __fsub_rn(values[i], __fmul_rn(rate, gradients[i]));
  }
}

}  // namespace

absl::Status LoadPointwiseKernels() {
  return LoadKernels(BiasReluKernel, AddRunsKernel, AddIntoKernel, GeluKernel,
                     GeluBackwardKernel, SgdKernel);
}

int64_t BiasReluScratchBytes(int64_t rows, int64_t channels) {
  const int64_t runs = ColumnRuns(rows);
  return runs == 1 ? 0 : runs * channels * static_cast<int64_t>(sizeof(float));
}

absl::Status BiasReluBackward(int64_t rows, int64_t channels, const float* y,
                              float* dy, float* dbias, float* scratch,
                              cudaStream_t stream) {
  if (y == nullptr && dbias == nullptr) return absl::OkStatus();
  const int64_t runs = ColumnRuns(rows);
  float* const sums = dbias == nullptr || runs == 1 ? dbias : scratch;
  const absl::Status status = LaunchGrid(
      ColumnsGrid(rows, channels), kColumnThreads, stream,
      "BiasReluKernel launch", BiasReluKernel, RowRuns(rows, channels),
      BiasReluTerm{y, dy, static_cast<int>(channels)}, sums);
  if (!status.ok() || sums == dbias) return status;
  return AddRuns(runs, channels, scratch, dbias, stream);
}

absl::Status AddRuns(int64_t runs, int64_t channels, const float* sums,
                     float* total, cudaStream_t stream) {
  return LaunchOver(channels, stream, "AddRunsKernel launch", AddRunsKernel,
                    static_cast<int>(runs), static_cast<int>(channels), sums,
                    total);
}

absl::Status GeluForward(int64_t count, const float* x, float* y,
                         cudaStream_t stream) {
  return LaunchOver(count, stream, "GeluKernel launch", GeluKernel, count, x,
                    y);
}

absl::Status GeluBackward(int64_t count, const float* x, const float* dy,
                          float* dx, cudaStream_t stream) {
  return LaunchOver(count, stream, "GeluBackwardKernel launch",
                    GeluBackwardKernel, count, x, dy, dx);
}

absl::Status AddInto(int64_t count, const float* part, float* sum,
                     cudaStream_t stream) {
  return LaunchOver(count, stream, "AddIntoKernel launch", AddIntoKernel, count,
                    part, sum);
}

absl::Status SgdUpdateOnGpu(int64_t count, float* values,
                            const float* gradients, const float* learning_rate,
                            cudaStream_t stream) {
  return LaunchOver(count, stream, "SgdKernel launch", SgdKernel, count, values,
                    gradients, learning_rate);
}

}  // namespace lockstep
