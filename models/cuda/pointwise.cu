#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda_elements.h"
#include "base/cuda_launch.h"
#include "base/data_types.h"
#include "models/cuda/column_sums.h"
#include "models/cuda/kernel_types.h"
#include "models/cuda/loss_scale.h"
#include "models/cuda/pointwise.h"

namespace lockstep {
namespace {

constexpr int kThreads = kThreadsOver;

// The gradient of z in relu(z + bias), which replaces dy.
template <typename T>
struct BiasReluTerm {
  const T* y;  // Null: without ReLU.
  T* dy;
  int channels;

  __device__ void operator()(int64_t row, int channel,
                             float (&values)[1]) const {
    const int64_t i = row * channels + channel;
    float gradient = ToFloat(dy[i]);
    if (y != nullptr) {
      gradient = ToFloat(y[i]) <= 0 ? 0 : gradient;
      dy[i] = RoundTo<T>(gradient);
    }
    values[0] = gradient;
  }
};

template <typename T>
__global__ void __launch_bounds__(kColumnThreads)
    BiasReluKernel(RowRuns runs, BiasReluTerm<T> term, float* sums) {
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

template <typename T>
__global__ void __launch_bounds__(kThreads)
    AddIntoKernel(int64_t count, const T* part, T* sum) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) {
    sum[i] = RoundTo<T>(ToFloat(sum[i]) + ToFloat(part[i]));
  }
}

// Converts every element.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    ConvertKernel(int64_t count, const From* from, To* to) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) to[i] = RoundTo<To>(ToFloat(from[i]));
}

// Returns Phi(x) = erfc(-x / sqrt(2)) / 2, which does not cancel.
__device__ inline float NormalCdf(float x) {
  constexpr float kInverseSqrt2 = 0.70710678f;
  return 0.5f * erfcf(-x * kInverseSqrt2);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    GeluKernel(int64_t count, const T* x, T* y) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) {
    const float value = ToFloat(x[i]);
    y[i] = RoundTo<T>(value * NormalCdf(value));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    GeluBackwardKernel(int64_t count, const T* x, const T* dy, T* dx) {
  constexpr float kInverseSqrt2Pi = 0.39894228f;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) {
    const float value = ToFloat(x[i]);
    const float density = kInverseSqrt2Pi * expf(-0.5f * value * value);
    dx[i] = RoundTo<T>(ToFloat(dy[i]) * (NormalCdf(value) + value * density));
  }
}

__global__ void __launch_bounds__(kThreads)
    SgdKernel(int64_t count, float* values, const float* gradients,
              const float* learning_rate, const LossScale* scale) {
  if (scale != nullptr && scale->overflows != 0) return;
  const float rate = *learning_rate;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) {
    values[i] = __fsub_rn(values[i], __fmul_rn(rate, gradients[i]));
  }
}

}  // namespace

absl::Status LoadPointwiseKernels() {
  absl::Status status = LoadKernels(AddRunsKernel, SgdKernel);
  status.Update(ForActivations([]<typename T>(T) {
    return LoadKernels(BiasReluKernel<T>, AddIntoKernel<T>, GeluKernel<T>,
                       GeluBackwardKernel<T>, ConvertKernel<float, T>,
                       ConvertKernel<T, float>);
  }));
  return status;
}

int64_t BiasReluScratchBytes(int64_t rows, int64_t channels) {
  const int64_t runs = ColumnRuns(rows);
  return runs == 1 ? 0 : runs * channels * static_cast<int64_t>(sizeof(float));
}

absl::Status BiasReluBackward(DataType type, int64_t rows, int64_t channels,
                              const void* y, void* dy, float* dbias,
                              float* scratch, cudaStream_t stream) {
  if (y == nullptr && dbias == nullptr) return absl::OkStatus();
  const int64_t runs = ColumnRuns(rows);
  float* const sums = dbias == nullptr || runs == 1 ? dbias : scratch;
  const absl::Status status = WithActivations(type, [&]<typename T>(T) {
    return LaunchGrid(ColumnsGrid(rows, channels), kColumnThreads, stream,
                      "BiasReluKernel launch", BiasReluKernel<T>,
                      RowRuns(rows, channels),
                      BiasReluTerm<T>{Elements<T>(y), Elements<T>(dy),
                                      static_cast<int>(channels)},
                      sums);
  });
  if (!status.ok() || sums == dbias) return status;
  return AddRuns(runs, channels, scratch, dbias, stream);
}

absl::Status AddRuns(int64_t runs, int64_t channels, const float* sums,
                     float* total, cudaStream_t stream) {
  return LaunchOver(channels, stream, "AddRunsKernel launch", AddRunsKernel,
                    static_cast<int>(runs), static_cast<int>(channels), sums,
                    total);
}

absl::Status GeluForward(DataType type, int64_t count, const void* x, void* y,
                         cudaStream_t stream) {
  return WithActivations(type, [&]<typename T>(T) {
    return LaunchOver(count, stream, "GeluKernel launch", GeluKernel<T>, count,
                      Elements<T>(x), Elements<T>(y));
  });
}

absl::Status GeluBackward(DataType type, int64_t count, const void* x,
                          const void* dy, void* dx, cudaStream_t stream) {
  return WithActivations(type, [&]<typename T>(T) {
    return LaunchOver(count, stream, "GeluBackwardKernel launch",
                      GeluBackwardKernel<T>, count, Elements<T>(x),
                      Elements<T>(dy), Elements<T>(dx));
  });
}

absl::Status AddInto(DataType type, int64_t count, const void* part, void* sum,
                     cudaStream_t stream) {
  return WithActivations(type, [&]<typename T>(T) {
    return LaunchOver(count, stream, "AddIntoKernel launch", AddIntoKernel<T>,
                      count, Elements<T>(part), Elements<T>(sum));
  });
}

absl::Status RoundOnGpu(DataType type, int64_t count, const float* wide,
                        void* narrow, cudaStream_t stream) {
  return WithActivations(type, [&]<typename T>(T) {
    return LaunchOver(count, stream, "ConvertKernel launch",
                      ConvertKernel<float, T>, count, wide,
                      Elements<T>(narrow));
  });
}

absl::Status WidenOnGpu(DataType type, int64_t count, const void* narrow,
                        float* wide, cudaStream_t stream) {
  return WithActivations(type, [&]<typename T>(T) {
    return LaunchOver(count, stream, "ConvertKernel launch",
                      ConvertKernel<T, float>, count, Elements<T>(narrow),
                      wide);
  });
}

absl::Status SgdUpdateOnGpu(int64_t count, float* values,
                            const float* gradients, const float* learning_rate,
                            const LossScale* scale, cudaStream_t stream) {
  return LaunchOver(count, stream, "SgdKernel launch", SgdKernel, count, values,
                    gradients, learning_rate, scale);
}

}  // namespace lockstep
