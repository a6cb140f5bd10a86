#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda_elements.h"
#include "base/cuda_launch.h"
#include "models/cuda/block_reduce.h"
#include "models/cuda/column_sums.h"
#include "models/cuda/kernel_types.h"
#include "models/cuda/layer_norm.h"
#include "models/cuda/pointwise.h"

namespace lockstep {
namespace {

// One block a row.
template <typename T>
__global__ void __launch_bounds__(kMostReduceThreads)
    LayerNormKernel(int64_t channels, float epsilon, const T* x,
                    const float* weight, const float* bias, T* y,
                    RowStatistics* statistics) {
  __shared__ float shared[kMostReduceThreads];
  const int64_t begin = blockIdx.x * channels;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < channels; i += blockDim.x) {
    sum += ToFloat(x[begin + i]);
  }
  const float count = static_cast<float>(channels);
  const float mean = CombineBlock(sum, shared, Plus()) / count;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < channels; i += blockDim.x) {
    const float deviation = ToFloat(x[begin + i]) - mean;
    squares += deviation * deviation;
  }
  const float variance = CombineBlock(squares, shared, Plus()) / count;
  const float inverse = 1 / sqrtf(variance + epsilon);
  for (int64_t i = threadIdx.x; i < channels; i += blockDim.x) {
    const float deviation = ToFloat(x[begin + i]) - mean;
    y[begin + i] = RoundTo<T>(deviation * inverse * weight[i] + bias[i]);
  }
  if (threadIdx.x == 0) statistics[blockIdx.x] = {mean, inverse};
}

// The terms of dweight and dbias.
template <typename T>
struct ParameterTerms {
  const T* x;
  const RowStatistics* statistics;
  const T* dy;
  int channels;

  __device__ void operator()(int64_t row, int channel,
                             float (&values)[2]) const {
    const int64_t i = row * channels + channel;
    const RowStatistics& of_row = statistics[row];
    const float gradient = ToFloat(dy[i]);
    values[0] =
        gradient * ((ToFloat(x[i]) - of_row.mean) * of_row.inverse_deviation);
    values[1] = gradient;
  }
};

template <typename T>
__global__ void __launch_bounds__(kColumnThreads)
    LayerNormParametersKernel(RowRuns runs, ParameterTerms<T> terms,
                              float* weight_sums, float* bias_sums) {
  SumColumns<2>(runs, terms, {weight_sums, bias_sums});
}

// One block a row. With g = dy * weight and z = (x - mean) *
// inverse_deviation: dx = inverse_deviation * (g - mean(g) - z * mean(g * z)).
template <typename T>
__global__ void __launch_bounds__(kMostReduceThreads)
    LayerNormInputKernel(int64_t channels, const T* x, const float* weight,
                         const RowStatistics* statistics, const T* dy, T* dx) {
  __shared__ float shared[kMostReduceThreads];
  const int64_t begin = blockIdx.x * channels;
  const RowStatistics of_row = statistics[blockIdx.x];
  float sum = 0;
  float dot = 0;
  for (int64_t i = threadIdx.x; i < channels; i += blockDim.x) {
    const float g = ToFloat(dy[begin + i]) * weight[i];
    sum += g;
    dot +=
        g * ((ToFloat(x[begin + i]) - of_row.mean) * of_row.inverse_deviation);
  }
  const float count = static_cast<float>(channels);
  const float mean_g = CombineBlock(sum, shared, Plus()) / count;
  const float mean_gz = CombineBlock(dot, shared, Plus()) / count;
  for (int64_t i = threadIdx.x; i < channels; i += blockDim.x) {
    const float z =
        (ToFloat(x[begin + i]) - of_row.mean) * of_row.inverse_deviation;
    const float g = ToFloat(dy[begin + i]) * weight[i];
    dx[begin + i] =
        RoundTo<T>(of_row.inverse_deviation * (g - mean_g - z * mean_gz));
  }
}

}  // namespace

absl::Status LoadLayerNormKernels() {
  return ForActivations([]<typename T>(T) {
    return LoadKernels(LayerNormKernel<T>, LayerNormParametersKernel<T>,
                       LayerNormInputKernel<T>);
  });
}

absl::Status LayerNormForward(const LayerNormShape& shape, const void* x,
                              const float* weight, const float* bias, void* y,
                              RowStatistics* statistics, cudaStream_t stream) {
  return WithActivations(shape.type, [&]<typename T>(T) {
    return LaunchGrid(dim3(static_cast<unsigned>(shape.rows)),
                      ReduceThreads(shape.channels), stream,
                      "LayerNormKernel launch", LayerNormKernel<T>,
                      shape.channels, shape.epsilon, Elements<T>(x), weight,
                      bias, Elements<T>(y), statistics);
  });
}

int64_t LayerNormScratchBytes(const LayerNormShape& shape) {
  const int64_t runs = ColumnRuns(shape.rows);
  return runs == 1
             ? 0
             : 2 * runs * shape.channels * static_cast<int64_t>(sizeof(float));
}

absl::Status LayerNormBackwardParameters(const LayerNormShape& shape,
                                         const void* x,
                                         const RowStatistics* statistics,
                                         const void* dy, float* dweight,
                                         float* dbias, float* scratch,
                                         cudaStream_t stream) {
  const int64_t runs = ColumnRuns(shape.rows);
  float* const weight_sums = runs == 1 ? dweight : scratch;
  float* const bias_sums = runs == 1 ? dbias : scratch + runs * shape.channels;
  const absl::Status status = WithActivations(shape.type, [&]<typename T>(T) {
    return LaunchGrid(
        ColumnsGrid(shape.rows, shape.channels), kColumnThreads, stream,
        "LayerNormParametersKernel launch", LayerNormParametersKernel<T>,
        RowRuns(shape.rows, shape.channels),
        ParameterTerms<T>{Elements<T>(x), statistics, Elements<T>(dy),
                          static_cast<int>(shape.channels)},
        weight_sums, bias_sums);
  });
  if (!status.ok() || runs == 1) return status;
  const absl::Status added =
      AddRuns(runs, shape.channels, weight_sums, dweight, stream);
  if (!added.ok()) return added;
  return AddRuns(runs, shape.channels, bias_sums, dbias, stream);
}

absl::Status LayerNormBackwardInput(const LayerNormShape& shape, const void* x,
                                    const float* weight,
                                    const RowStatistics* statistics,
                                    const void* dy, void* dx,
                                    cudaStream_t stream) {
  return WithActivations(shape.type, [&]<typename T>(T) {
    return LaunchGrid(dim3(static_cast<unsigned>(shape.rows)),
                      ReduceThreads(shape.channels), stream,
                      "LayerNormInputKernel launch", LayerNormInputKernel<T>,
                      shape.channels, Elements<T>(x), weight, statistics,
                      Elements<T>(dy), Elements<T>(dx));
  });
}

}  // namespace lockstep
