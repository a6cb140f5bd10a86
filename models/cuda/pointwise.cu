#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "base/cuda_launch.h"
#include "base/cuda_status.h"
#include "models/cuda/pointwise.h"

namespace lockstep {
namespace {

constexpr int kThreads = kThreadsOver;

// A block of BiasReluKernel takes kTile channels and adds every kLines-th row
// of its run in each of kLines lines of threads.
constexpr int kTile = 32;
constexpr int kLines = kThreads / kTile;
constexpr int64_t kRowsOfBlock = 256;  // At least, unless there are fewer.
constexpr int64_t kMostRuns = 128;

// The number of runs into which the rows are divided.
int64_t RunsOf(int64_t rows) {
  return std::clamp(rows / kRowsOfBlock, int64_t{1}, kMostRuns);
}

// Adds run blockIdx.y of the rows to sums[blockIdx.y].
__global__ void __launch_bounds__(kThreads)
    BiasReluKernel(int64_t rows, int channels, int64_t rows_of_run,
                   const float* y, float* dy, float* sums) {
  __shared__ float line_sums[kLines][kTile];
  const int column = static_cast<int>(threadIdx.x) % kTile;
  const int line = static_cast<int>(threadIdx.x) / kTile;
  const int channel = static_cast<int>(blockIdx.x) * kTile + column;
  const int64_t begin = blockIdx.y * rows_of_run;
  const int64_t end = begin + rows_of_run < rows ? begin + rows_of_run : rows;
  float sum = 0;
  if (channel < channels) {
    for (int64_t row = begin + line; row < end; row += kLines) {
      const int64_t i = row * channels + channel;
      float gradient = dy[i];
      if (y != nullptr) {
        gradient = y[i] <= 0 ? 0 : gradient;
        dy[i] = gradient;
      }
      sum += gradient;
    }
  }
  line_sums[line][column] = sum;
  __syncthreads();
  if (line != 0 || channel >= channels || sums == nullptr) return;
  for (int other = 1; other < kLines; ++other) sum += line_sums[other][column];
  sums[int64_t{blockIdx.y} * channels + channel] = sum;
}

// Adds the sums of all runs.
__global__ void __launch_bounds__(kThreads)
    AddRunsKernel(int runs, int channels, const float* sums, float* dbias) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t channel = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; channel < channels; channel += step) {
    float sum = 0;
    for (int run = 0; run < runs; ++run) {
      sum += sums[int64_t{run} * channels + channel];
    }
    dbias[channel] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    AddIntoKernel(int64_t count, const float* part, float* sum) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) sum[i] += part[i];
}

__global__ void __launch_bounds__(kThreads)
    SgdKernel(int64_t count, float* values, const float* gradients,
              float learning_rate) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < count; i += step) {
    values[i] = __fsub_rn(values[i], __fmul_rn(learning_rate, gradients[i]));
  }
}

}  // namespace

absl::Status LoadPointwiseKernels() {
  return LoadKernels(BiasReluKernel, AddRunsKernel, AddIntoKernel, SgdKernel);
}

int64_t BiasReluScratchBytes(int64_t rows, int64_t channels) {
  const int64_t runs = RunsOf(rows);
  return runs == 1 ? 0 : runs * channels * static_cast<int64_t>(sizeof(float));
}

absl::Status BiasReluBackward(int64_t rows, int64_t channels, const float* y,
                              float* dy, float* dbias, float* scratch,
                              cudaStream_t stream) {
  if (y == nullptr && dbias == nullptr) return absl::OkStatus();
  const int64_t runs = RunsOf(rows);
  float* const sums = dbias == nullptr || runs == 1 ? dbias : scratch;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>((channels + kTile - 1) / kTile),
                        static_cast<unsigned>(runs));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  const absl::Status status =
      CudaStatus(cudaLaunchKernelEx(&config, BiasReluKernel, rows,
                                    static_cast<int>(channels),
                                    (rows + runs - 1) / runs, y, dy, sums),
                 "BiasReluKernel launch");
  if (!status.ok() || sums == dbias) return status;
  return LaunchOver(channels, stream, "AddRunsKernel launch", AddRunsKernel,
                    static_cast<int>(runs), static_cast<int>(channels),
                    static_cast<const float*>(scratch), dbias);
}

absl::Status AddInto(int64_t count, const float* part, float* sum,
                     cudaStream_t stream) {
  return LaunchOver(count, stream, "AddIntoKernel launch", AddIntoKernel, count,
                    part, sum);
}

absl::Status SgdUpdateOnGpu(int64_t count, float* values,
                            const float* gradients, float learning_rate,
                            cudaStream_t stream) {
  return LaunchOver(count, stream, "SgdKernel launch", SgdKernel, count, values,
                    gradients, learning_rate);
}

}  // namespace lockstep
