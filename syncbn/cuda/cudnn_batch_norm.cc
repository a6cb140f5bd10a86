#include "syncbn/cuda/cudnn_batch_norm.h"

#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {
namespace {

constexpr cudnnBatchNormMode_t kMode = CUDNN_BATCHNORM_SPATIAL;
constexpr float kOne = 1;
constexpr float kZero = 0;

// cuDNN's thousands are categories: 3 is what it does not support.
absl::Status CudnnStatus(cudnnStatus_t error, absl::string_view what) {
  if (error == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message =
      absl::StrCat(what, ": cuDNN error ", static_cast<int>(error), ": ",
                   cudnnGetErrorString(error));
  return static_cast<int>(error) / 1000 == 3 ? absl::UnimplementedError(message)
                                             : absl::InternalError(message);
}

absl::StatusOr<cudnnDataType_t> CudnnTypeOf(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return CUDNN_DATA_FLOAT;
    case DataType::kFloat16:
      return CUDNN_DATA_HALF;
    case DataType::kBFloat16:
      return CUDNN_DATA_BFLOAT16;
    default:
      return absl::UnimplementedError(
          absl::StrCat("batch norm on a GPU has no ", Name(type),
                       "; it has float32, float16 and bfloat16"));
  }
}

// cuDNN counts in int, and divides by the number of values less one.
bool Fits(const ActivationShape& shape) {
  return shape.values_per_channel() > 1 &&
         shape.size() <= std::numeric_limits<int>::max();
}

const float* Floats(const ConstBuffer& buffer, const float* otherwise) {
  return buffer.count == 0 ? otherwise : static_cast<const float*>(buffer.data);
}

float* Floats(const Buffer& buffer, float* otherwise) {
  return buffer.count == 0 ? otherwise : static_cast<float*>(buffer.data);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudnnBatchNorm>> CudnnBatchNorm::Create(
    const BatchNormOptions& options, CudaBatchNormKernels& kernels) {
  LOCKSTEP_RETURN_IF_ERROR(CheckBatchNormOptions(options));
  std::unique_ptr<CudnnBatchNorm> made(new CudnnBatchNorm(options, kernels));
  LOCKSTEP_ASSIGN_OR_RETURN(made->by_kernels_,
                            SyncBatchNorm::CreateLocal(options, kernels));
  cudnnHandle_t handle = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(CudnnStatus(cudnnCreate(&handle), "cudnnCreate"));
  made->cudnn_.reset(handle);
  LOCKSTEP_RETURN_IF_ERROR(
      CudnnStatus(cudnnSetStream(handle, kernels.stream()), "cudnnSetStream"));
  for (auto* const owner : {&made->activations_, &made->channels_}) {
    cudnnTensorDescriptor_t descriptor = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(
        CudnnStatus(cudnnCreateTensorDescriptor(&descriptor),
                    "cudnnCreateTensorDescriptor"));
    owner->reset(descriptor);
  }
  LOCKSTEP_RETURN_IF_ERROR(made->FillMemory());
  return made;
}

CudnnBatchNorm::~CudnnBatchNorm() { cudaStreamSynchronize(kernels_.stream()); }

absl::Status CudnnBatchNorm::FillMemory() {
  const auto channels = static_cast<size_t>(options_.channels);
  std::vector<float> values(4 * channels, 0.0f);
  for (size_t i = 0; i < channels; ++i) values[i] = 1;
  const size_t bytes = values.size() * sizeof(float);
  LOCKSTEP_ASSIGN_OR_RETURN(memory_,
                            AllocateDeviceMemory(static_cast<int64_t>(bytes)));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(memory_.get(), values.data(), bytes,
                                 cudaMemcpyHostToDevice, kernels_.stream()),
                 "cudaMemcpyAsync"));
  // The values go now.
  return CudaStatus(cudaStreamSynchronize(kernels_.stream()),
                    "cudaStreamSynchronize");
}

int64_t CudnnBatchNorm::SavedBytes(DataType type) const {
  return RecordOf(options_.channels, type).size_bytes();
}

absl::Status CudnnBatchNorm::Describe(const ActivationShape& shape,
                                      DataType type) {
  LOCKSTEP_ASSIGN_OR_RETURN(const cudnnDataType_t element, CudnnTypeOf(type));
  const cudnnTensorFormat_t format =
      shape.layout == Layout::kNchw ? CUDNN_TENSOR_NCHW : CUDNN_TENSOR_NHWC;
  LOCKSTEP_RETURN_IF_ERROR(CudnnStatus(
      cudnnSetTensor4dDescriptor(
          activations_.get(), format, element, static_cast<int>(shape.n),
          static_cast<int>(shape.c), static_cast<int>(shape.hw), 1),
      "cudnnSetTensor4dDescriptor"));
  return CudnnStatus(
      cudnnDeriveBNTensorDescriptor(channels_.get(), activations_.get(), kMode),
      "cudnnDeriveBNTensorDescriptor");
}

absl::Status CudnnBatchNorm::Forward(const Forwards& buffers) {
  LOCKSTEP_RETURN_IF_ERROR(CheckForwards(options_, buffers));
  const bool plain = !buffers.relu && buffers.residual.count == 0 &&
                     buffers.y.data != buffers.x.data && Fits(buffers.shape);
  if (plain && buffers.training) return Train(buffers);
  if (plain && options_.track_running_stats) return Infer(buffers);
  return by_kernels_->Forward(buffers);
}

absl::Status CudnnBatchNorm::Train(const Forwards& buffers) {
  LOCKSTEP_RETURN_IF_ERROR(Describe(buffers.shape, buffers.x.type));
  const RunningStatistics& running = buffers.running;
  const StatisticsRecord record = RecordOf(options_.channels, buffers.x.type);
  std::byte* const saved = buffers.saved.bytes();
  // cuDNN tracks the unbiased variance. Where the biased one is wanted, it
  // writes those of the batch to scratch memory.
  const bool biased = !options_.semantics.unbiased_running_variance;
  const double weight = MergeOptionsFor(options_, running).weight_of_batch;
  float* mean = Floats(running.mean, nullptr);
  float* variance = Floats(running.variance, nullptr);
  if (running.tracked() && biased) {
    mean = Scratch();
    variance = mean + options_.channels;
    // Which it may do by weighing what is there with 0: no NaN then.
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(mean, 0, ScratchBytes(), kernels_.stream()),
                   "cudaMemsetAsync"));
  }
  LOCKSTEP_RETURN_IF_ERROR(CudnnStatus(
      cudnnBatchNormalizationForwardTraining(
          cudnn_.get(), kMode, &kOne, &kZero, activations_.get(),
          buffers.x.data, activations_.get(), buffers.y.data, channels_.get(),
          Floats(buffers.weight, Ones()), Floats(buffers.bias, Zeros()),
          biased ? 1 : weight, mean, variance, options_.epsilon,
          saved + record.mean_offset(), saved + record.second_offset()),
      "cudnnBatchNormalizationForwardTraining"));
  const int64_t count = buffers.shape.values_per_channel();
  // From memory that is not pinned the runtime has copied when it returns.
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(saved, &count, sizeof(count),
                                 cudaMemcpyHostToDevice, kernels_.stream()),
                 "cudaMemcpyAsync"));
  if (running.tracked() && biased) {
    LOCKSTEP_RETURN_IF_ERROR(
        kernels_.TrackBiased(record, mean, variance, count, weight, running));
  }
  return CountBatch(options_, count, running);
}

absl::Status CudnnBatchNorm::Infer(const Forwards& buffers) {
  LOCKSTEP_RETURN_IF_ERROR(Describe(buffers.shape, buffers.x.type));
  // Backward of an evaluation needs it.
  LOCKSTEP_RETURN_IF_ERROR(kernels_.UseRunning(
      {RecordOf(options_.channels, buffers.x.type), buffers.running,
       options_.epsilon, buffers.saved.bytes()}));
  return CudnnStatus(
      cudnnBatchNormalizationForwardInference(
          cudnn_.get(), kMode, &kOne, &kZero, activations_.get(),
          buffers.x.data, activations_.get(), buffers.y.data, channels_.get(),
          Floats(buffers.weight, Ones()), Floats(buffers.bias, Zeros()),
          buffers.running.mean.data, buffers.running.variance.data,
          options_.epsilon),
      "cudnnBatchNormalizationForwardInference");
}

absl::Status CudnnBatchNorm::Backward(
    const Backwards& buffers, absl::FunctionRef<void()> gradients_ready) {
  LOCKSTEP_RETURN_IF_ERROR(CheckBackwards(options_, buffers));
  const bool plain = buffers.training && !buffers.relu &&
                     buffers.dresidual.count == 0 &&
                     buffers.dx.data != buffers.dy.data && Fits(buffers.shape);
  if (!plain) return by_kernels_->Backward(buffers, gradients_ready);
  LOCKSTEP_RETURN_IF_ERROR(Describe(buffers.shape, buffers.x.type));
  const StatisticsRecord record = RecordOf(options_.channels, buffers.x.type);
  const std::byte* const saved = buffers.saved.bytes();
  LOCKSTEP_RETURN_IF_ERROR(CudnnStatus(
      cudnnBatchNormalizationBackward(
          cudnn_.get(), kMode, &kOne, &kZero, &kOne, &kZero, activations_.get(),
          buffers.x.data, activations_.get(), buffers.dy.data,
          activations_.get(), buffers.dx.data, channels_.get(),
          Floats(buffers.weight, Ones()), Floats(buffers.dweight, Scratch()),
          Floats(buffers.dbias, Scratch() + options_.channels),
          options_.epsilon, saved + record.mean_offset(),
          saved + record.second_offset()),
      "cudnnBatchNormalizationBackward"));
  gradients_ready();
  return absl::OkStatus();
}

}  // namespace lockstep
