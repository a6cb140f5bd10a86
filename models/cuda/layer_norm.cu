#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda_launch.h"
#include "models/cuda/block_reduce.h"
#include "models/cuda/column_sums.h"
#include "models/cuda/layer_norm.h"
#include "models/cuda/pointwise.h"

namespace lockstep {
namespace {

// One block a row.
__global__ void __launch_bounds__(kMostReduceThreads)
    LayerNormKernel(int64_t channels, float epsilon, const float* x,
                    const float* weight, const float* bias, float* y,
                    RowStatistics* statistics) {
  __shared__ float shared[kMostReduceThreads];
  const int64_t begin = blockIdx.x * channels;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < channels; i += blockDim.x) {
    sum += x[begin + i];
  }
  const float count = static_cast<float>(channels);
  const float mean = CombineBlock(sum, shared, Plus()) / count;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < channels; i += blockDim.x) {
    const float deviation = x[begin + i] - mean;
    squares += deviation * deviation;
  }
  const float variance = CombineBlock(squares, shared, Plus()) / count;
  const float inverse = 1 / sqrtf(variance + epsilon);
  for (int64_t i = threadIdx.x; i < channels; i += blockDim.x) {
    y[begin + i] = (x[begin + i] - mean) * inverse * weight[i] + bias[i];
  }
  if (threadIdx.x == 0) statistics[blockIdx.x] = {mean, inverse};
}

// The terms of dweight and dbias.
struct ParameterTerms {
  const float* x;
  const RowStatistics* statistics;
  const float* dy;
  int channels;

  __device__ void operator()(int64_t row, int channel,
                             float (&values)[2]) const {
    const int64_t i = row * channels + channel;
    const RowStatistics& of_row = statistics[row];
    values[0] = dy[i] * ((x[i] - of_row.mean) * of_row.inverse_deviation);
    values[1] = dy[i];
  }
};

__global__ void __launch_bounds__(kColumnThreads)
    LayerNormParametersKernel(RowRuns runs, ParameterTerms terms,
                              float* weight_sums, float* bias_sums) {
  SumColumns<2>(runs, terms, {weight_sums, bias_sums});
}

// One block a row. With g = dy * weight and z = (x - mean) *
// inverse_deviation: dx = inverse_deviation * (g - mean(g) - z * mean(g * z)).
__global__ void __launch_bounds__(kMostReduceThreads)
    LayerNormInputKernel(int64_t channels, const float* x, const float* weight,
                         const RowStatistics* statistics, const float* dy,
                         float* dx) {
  __shared__ float shared[kMostReduceThreads];
  const int64_t begin = blockIdx.x * channels;
  const RowStatistics of_row = statistics[blockIdx.x];
  float sum = 0;
  float dot = 0;
  for (int64_t i = threadIdx.x; i < channels; i += blockDim.x) {
    const float g = dy[begin + i] * weight[i];
    sum += g;
    dot += g * ((x[begin + i] - of_row.mean) * of_row.inverse_deviation);
  }
  const float count = static_cast<float>(channels);
  const float mean_g = CombineBlock(sum, shared, Plus()) / count;
  const float mean_gz = CombineBlock(dot, shared, Plus()) / count;
  for (int64_t i = threadIdx.x; i < channels; i += blockDim.x) {
    const float z = (x[begin + i] - of_row.mean) * of_row.inverse_deviation;
    dx[begin + i] = of_row.inverse_deviation *
                    (dy[begin + i] * weight[i] - mean_g - z * mean_gz);
  }
}

}  // namespace

absl::Status LoadLayerNormKernels() {
  return LoadKernels(LayerNormKernel, LayerNormParametersKernel,
                     LayerNormInputKernel);
}

absl::Status LayerNormForward(const LayerNormShape& shape, const float* x,
                              const float* weight, const float* bias, float* y,
                              RowStatistics* statistics, cudaStream_t stream) {
  return LaunchGrid(dim3(static_cast<unsigned>(shape.rows)),
                    ReduceThreads(shape.channels), stream,
                    "LayerNormKernel launch", LayerNormKernel, shape.channels,
                    shape.epsilon, x, weight, bias, y, statistics);
}

int64_t LayerNormScratchBytes(const LayerNormShape& shape) {
  const int64_t runs = ColumnRuns(shape.rows);
  return runs == 1
             ? 0
             : 2 * runs * shape.channels * static_cast<int64_t>(sizeof(float));
}

absl::Status LayerNormBackwardParameters(const LayerNormShape& shape,
                                         const float* x,
                                         const RowStatistics* statistics,
                                         const float* dy, float* dweight,
                                         float* dbias, float* scratch,
                                         cudaStream_t stream) {
  const int64_t runs = ColumnRuns(shape.rows);
  float* const weight_sums = runs == 1 ? dweight : scratch;
  float* const bias_sums = runs == 1 ? dbias : scratch + runs * shape.channels;
  const absl::Status status = LaunchGrid(
      ColumnsGrid(shape.rows, shape.channels), kColumnThreads, stream,
      "LayerNormParametersKernel launch", LayerNormParametersKernel,
      RowRuns(shape.rows, shape.channels),
      ParameterTerms{x, statistics, dy, static_cast<int>(shape.channels)},
      weight_sums, bias_sums);
  if (!status.ok() || runs == 1) return status;
  const absl::Status added =
      AddRuns(runs, shape.channels, weight_sums, dweight, stream);
  if (!added.ok()) return added;
  return AddRuns(runs, shape.channels, bias_sums, dbias, stream);
}

absl::Status LayerNormBackwardInput(const LayerNormShape& shape, const float* x,
                                    const float* weight,
                                    const RowStatistics* statistics,
                                    const float* dy, float* dx,
                                    cudaStream_t stream) {
  return LaunchGrid(dim3(static_cast<unsigned>(shape.rows)),
                    ReduceThreads(shape.channels), stream,
                    "LayerNormInputKernel launch", LayerNormInputKernel,
                    shape.channels, x, weight, statistics, dy, dx);
}

}  // namespace lockstep
