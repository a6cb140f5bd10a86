// One thread per channel, in float64.
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/kernel_operands.h"
#include "syncbn/cuda/kernels.h"
#include "syncbn/moments.h"

namespace lockstep {
namespace {

// Two warps: so few channels spread over as many multiprocessors as can be, and
// all that a thread does is wait for memory and divide.
constexpr int kThreads = 64;

// Null pointers: not tracked.
struct Running {
  float* mean;
  float* variance;
};

__device__ inline void Track(const Running& running, int64_t channel,
                             double weight, double mean, double variance) {
  running.mean[channel] =
      static_cast<float>((1 - weight) * running.mean[channel] + weight * mean);
  running.variance[channel] = static_cast<float>(
      (1 - weight) * running.variance[channel] + weight * variance);
}

// `first` is of the first rank; the others follow, `stride` bytes each.
__global__ void MergeKernel(int64_t channels, RecordPointers<const float> first,
                            int64_t stride, int ranks, MergeOptions options,
                            Running running, RecordPointers<float> saved) {
  const int64_t channel = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  Moments<double> all;
  for (int rank = 0; rank < ranks; ++rank) {
    // Strides are whole multiples of 16.
    const int64_t floats = rank * (stride / int64_t{sizeof(float)});
    const int64_t counts = rank * (stride / int64_t{sizeof(int64_t)});
    all = MergeMoments<double>(
        all, {first.count[counts], first.mean[channel + floats],
              first.second[channel + floats]});
  }
  const double variance = BiasedVariance(all);
  if (channel == 0) StartRecord(saved, channels, all.count);
  saved.mean[channel] = static_cast<float>(all.mean);
  saved.second[channel] =
      static_cast<float>(InverseDeviation(variance, options.epsilon));
  const bool refused = all.count == 1 && options.refuses_one_value;
  if (running.mean == nullptr || all.count == 0 || refused) return;
  Track(running, channel, options.weight_of_batch, all.mean,
        options.unbiased_running_variance ? UnbiasedVariance(all) : variance);
}

__global__ void UseRunningKernel(int64_t channels, Running running,
                                 double epsilon, RecordPointers<float> saved) {
  const int64_t channel = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  if (channel == 0) StartRecord(saved, channels, 0);
  saved.mean[channel] = running.mean[channel];
  saved.second[channel] =
      static_cast<float>(InverseDeviation(running.variance[channel], epsilon));
}

__global__ void TrackBiasedKernel(int64_t channels, const float* mean,
                                  const float* unbiased_variance, int64_t count,
                                  double weight, Running running) {
  const int64_t channel = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  const double share =
      static_cast<double>(count - 1) / static_cast<double>(count);
  Track(running, channel, weight, mean[channel],
        unbiased_variance[channel] * share);
}

Running RunningOf(const RunningStatistics& running) {
  return {PointerOrNull<float>(running.mean),
          PointerOrNull<float>(running.variance)};
}

// Launches one thread for each channel.
template <typename... Parameters>
absl::Status Launch(const StatisticsRecord& record, cudaStream_t stream,
                    absl::string_view what, void (*kernel)(Parameters...),
                    Parameters... parameters) {
  if (record.type != DataType::kFloat32) {
    return absl::UnimplementedError(
        absl::StrCat("batch norm on a GPU has no kernels for statistics in ",
                     Name(record.type), "; it has them for float32"));
  }
  cudaLaunchConfig_t config = {};
  config.gridDim =
      dim3(static_cast<unsigned>((record.channels + kThreads - 1) / kThreads));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, parameters...), what);
}

}  // namespace

absl::Status MergeRecords(const StatisticsRecord& record,
                          const std::byte* gathered, int ranks,
                          const MergeOptions& options,
                          const RunningStatistics& running, std::byte* saved,
                          cudaStream_t stream) {
  return Launch(record, stream, "Merge launch", MergeKernel, record.channels,
                PointersOf<const float>(gathered, record.channels),
                record.size_bytes(), ranks, options, RunningOf(running),
                PointersOf<float>(saved, record.channels));
}

absl::Status UseRunning(const StatisticsRecord& record,
                        const RunningStatistics& running, double epsilon,
                        std::byte* saved, cudaStream_t stream) {
  return Launch(record, stream, "UseRunning launch", UseRunningKernel,
                record.channels, RunningOf(running), epsilon,
                PointersOf<float>(saved, record.channels));
}

absl::Status TrackBiased(const StatisticsRecord& record, const float* mean,
                         const float* unbiased_variance, int64_t count,
                         double weight_of_batch,
                         const RunningStatistics& running,
                         cudaStream_t stream) {
  return Launch(record, stream, "TrackBiased launch", TrackBiasedKernel,
                record.channels, mean, unbiased_variance, count,
                weight_of_batch, RunningOf(running));
}

}  // namespace lockstep
