#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cuda_launch.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/elementwise.h"
#include "syncbn/cuda/kernel_operands.h"
#include "syncbn/cuda/reductions.h"

namespace lockstep {
namespace {

// Two warps. With few channels, small blocks spread over as many
// multiprocessors as possible. A thread only waits for memory and divides.
constexpr int kThreads = 64;

// `first` is the record of the first rank. The records of the other ranks
// follow, `stride` bytes apart.
__global__ void MergeKernel(int64_t channels, RecordPointers<const float> first,
                            int64_t stride, int ranks, BatchOutputs outputs) {
  const int64_t channel = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  Moments<double> all;
  for (int rank = 0; rank < ranks; ++rank) {
    // Strides are multiples of 16.
    const int64_t floats = rank * (stride / int64_t{sizeof(float)});
    const int64_t counts = rank * (stride / int64_t{sizeof(int64_t)});
    all = MergeMoments<double>(
        all, {first.count[counts], first.mean[channel + floats],
              first.second[channel + floats]});
  }
  StoreBatch(outputs, channels, channel, all);
}

__global__ void UseRunningKernel(int64_t channels, RunningPointers running,
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
                                  double weight, RunningPointers running) {
  const int64_t channel = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  const double share =
      static_cast<double>(count - 1) / static_cast<double>(count);
  Track(running, channel, weight, mean[channel],
        unbiased_variance[channel] * share);
}

RunningPointers RunningOf(const RunningStatistics& running) {
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

absl::StatusOr<std::unique_ptr<CudaBatchNormKernels>>
CudaBatchNormKernels::Create(cudaStream_t stream, int64_t max_blocks) {
  std::unique_ptr<CudaBatchNormKernels> made(new CudaBatchNormKernels(stream));
  int device = 0;
  int multiprocessors = 0;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&multiprocessors,
                                        cudaDevAttrMultiProcessorCount, device),
                 "cudaDeviceGetAttribute"));
  made->grid_ = {.multiprocessors = multiprocessors, .max_blocks = max_blocks};
  int64_t* count = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMallocHost(&count, sizeof(int64_t)), "cudaMallocHost"));
  made->count_.reset(count);
  LOCKSTEP_ASSIGN_OR_RETURN(made->memory_,
                            ReductionMemory::Create(kScratchBytes, stream));
  LOCKSTEP_RETURN_IF_ERROR(LoadReductionKernels());
  LOCKSTEP_RETURN_IF_ERROR(LoadElementwiseKernels());
  LOCKSTEP_RETURN_IF_ERROR(
      LoadKernels(MergeKernel, UseRunningKernel, TrackBiasedKernel));
  return made;
}

CudaBatchNormKernels::~CudaBatchNormKernels() {
  cudaStreamSynchronize(stream_);
}

absl::StatusOr<std::shared_ptr<std::byte>> CudaBatchNormKernels::Allocate(
    int64_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(DeviceMemory memory, AllocateDeviceMemory(bytes));
  return std::shared_ptr<std::byte>(std::move(memory));
}

absl::Status CudaBatchNormKernels::ComputeMoments(const ActivationShape& shape,
                                                  ConstBuffer x,
                                                  std::byte* record) {
  return ReduceMomentsOnGpu(shape, x, record, /*merge=*/nullptr, memory_,
                            stream_);
}

absl::Status CudaBatchNormKernels::Normalize(const NormalizeCall& call) {
  return NormalizeOnGpu(call, grid_, stream_);
}

absl::Status CudaBatchNormKernels::BackwardReduce(const BackwardCall& call) {
  return ReduceGradientsOnGpu(call, memory_, stream_);
}

absl::Status CudaBatchNormKernels::BackwardInput(const BackwardCall& call) {
  return InputGradientOnGpu(call, grid_, stream_);
}

absl::Status CudaBatchNormKernels::ForwardLocal(const NormalizeCall& call,
                                                const MergeOptions& options,
                                                std::byte* record) {
  const MergeCall merge = {RecordOf(call.shape.c, call.x.type),
                           record,
                           /*ranks=*/1,
                           options,
                           call.running,
                           call.saved.bytes()};
  LOCKSTEP_RETURN_IF_ERROR(
      ReduceMomentsOnGpu(call.shape, call.x, record, &merge, memory_, stream_));
  return call.shape.n == 0 ? absl::OkStatus() : Normalize(call);
}

absl::Status CudaBatchNormKernels::Merge(const MergeCall& call) {
  const int64_t channels = call.record.channels;
  return Launch(call.record, stream_, "Merge launch", MergeKernel, channels,
                PointersOf<const float>(call.gathered, channels),
                call.record.size_bytes(), call.ranks, OutputsOf(call));
}

absl::StatusOr<int64_t> CudaBatchNormKernels::ReadCount(
    const std::byte* saved) {
  // A record begins with its count.
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(count_.get(), saved, sizeof(int64_t),
                                 cudaMemcpyDeviceToHost, stream_),
                 "cudaMemcpyAsync"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
  return *count_;
}

absl::Status CudaBatchNormKernels::UseRunning(const RunningCall& call) {
  return Launch(call.record, stream_, "UseRunning launch", UseRunningKernel,
                call.record.channels, RunningOf(call.running), call.epsilon,
                PointersOf<float>(call.saved, call.record.channels));
}

absl::Status CudaBatchNormKernels::TrackBiased(
    const StatisticsRecord& record, const float* mean,
    const float* unbiased_variance, int64_t count, double weight_of_batch,
    const RunningStatistics& running) {
  return Launch(record, stream_, "TrackBiased launch", TrackBiasedKernel,
                record.channels, mean, unbiased_variance, count,
                weight_of_batch, RunningOf(running));
}

}  // namespace lockstep
