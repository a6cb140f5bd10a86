#include "syncbn/cuda/cudnn_batch_norm.h"

#include <cuda_runtime.h>
#include <cudnn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/cudnn_status.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {
namespace {

constexpr cudnnBatchNormOps_t kOps = CUDNN_BATCHNORM_OPS_BN;
constexpr float kOne = 1;
constexpr float kZero = 0;

// Returns PyTorch's choice in training, forward and backward.
cudnnBatchNormMode_t TrainingMode(const ActivationShape& shape) {
  return shape.layout == Layout::kNhwc ? CUDNN_BATCHNORM_SPATIAL_PERSISTENT
                                       : CUDNN_BATCHNORM_SPATIAL;
}

// Returns whether cuDNN supports the size: it counts in int, and divides by the
// number of values minus one.
bool Fits(const ActivationShape& shape) {
  return shape.values_per_channel() > 1 &&
         shape.size() <= std::numeric_limits<int>::max();
}

absl::Status CheckLayout(Layout layout) {
  if (layout != Layout::kNchw16c) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("batch norm: cuDNN does not support layout ", Name(layout)));
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
  LOCKSTEP_ASSIGN_OR_RETURN(made->kernel_layer_,
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
  // Waits, because `values` is destroyed on return.
  return CudaStatus(cudaStreamSynchronize(kernels_.stream()),
                    "cudaStreamSynchronize");
}

int64_t CudnnBatchNorm::SavedBytes(DataType type) const {
  return RecordOf(options_.channels, type).size_bytes();
}

absl::Status CudnnBatchNorm::Describe(const ActivationShape& shape,
                                      DataType type,
                                      cudnnBatchNormMode_t mode) {
  LOCKSTEP_ASSIGN_OR_RETURN(const cudnnDataType_t element, CudnnTypeOf(type));
  const cudnnTensorFormat_t format =
      shape.layout == Layout::kNchw ? CUDNN_TENSOR_NCHW : CUDNN_TENSOR_NHWC;
  LOCKSTEP_RETURN_IF_ERROR(CudnnStatus(
      cudnnSetTensor4dDescriptor(
          activations_.get(), format, element, static_cast<int>(shape.n),
          static_cast<int>(shape.c), static_cast<int>(shape.hw), 1),
      "cudnnSetTensor4dDescriptor"));
  return CudnnStatus(
      cudnnDeriveBNTensorDescriptor(channels_.get(), activations_.get(), mode),
      "cudnnDeriveBNTensorDescriptor");
}

absl::Status CudnnBatchNorm::Reserve(cudnnBatchNormMode_t mode,
                                     Space& reserve) {
  cudnnTensorDescriptor_t const t = activations_.get();
  size_t forward = 0, backward = 0, kept = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      CudnnStatus(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
                      cudnn_.get(), mode, kOps, t, nullptr, t, channels_.get(),
                      nullptr, &forward),
                  "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudnnStatus(cudnnGetBatchNormalizationBackwardExWorkspaceSize(
                      cudnn_.get(), mode, kOps, t, nullptr, t, nullptr, t,
                      channels_.get(), nullptr, &backward),
                  "cudnnGetBatchNormalizationBackwardExWorkspaceSize"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudnnStatus(cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
                      cudnn_.get(), mode, kOps, nullptr, t, &kept),
                  "cudnnGetBatchNormalizationTrainingExReserveSpaceSize"));
  const auto grow = [](Space& space, size_t bytes) -> absl::Status {
    if (bytes <= space.bytes) return absl::OkStatus();
    space = {};
    LOCKSTEP_ASSIGN_OR_RETURN(
        space.memory, AllocateDeviceMemory(static_cast<int64_t>(bytes)));
    space.bytes = bytes;
    return absl::OkStatus();
  };
  LOCKSTEP_RETURN_IF_ERROR(grow(workspace_, std::max(forward, backward)));
  return grow(reserve, kept);
}

absl::Status CudnnBatchNorm::Forward(const ForwardBuffers& buffers) {
  LOCKSTEP_RETURN_IF_ERROR(CheckForwards(options_, buffers));
  LOCKSTEP_RETURN_IF_ERROR(CheckLayout(buffers.shape.layout));
  if (const auto at = trained_.find(buffers.saved.data); at != trained_.end()) {
    at->second.by_cudnn = false;
  }
  const bool plain = !buffers.relu && buffers.residual.count == 0 &&
                     buffers.y.data != buffers.x.data && Fits(buffers.shape);
  if (plain && buffers.training) return Train(buffers);
  if (plain && options_.track_running_stats) return Infer(buffers);
  return kernel_layer_->Forward(buffers);
}

absl::Status CudnnBatchNorm::Train(const ForwardBuffers& buffers) {
  const cudnnBatchNormMode_t mode = TrainingMode(buffers.shape);
  LOCKSTEP_RETURN_IF_ERROR(Describe(buffers.shape, buffers.x.type, mode));
  Trained& trained = trained_[buffers.saved.data];
  LOCKSTEP_RETURN_IF_ERROR(Reserve(mode, trained.reserve));
  const RunningStatistics& running = buffers.running;
  const StatisticsRecord record = RecordOf(options_.channels, buffers.x.type);
  std::byte* const saved = buffers.saved.bytes();
  // cuDNN tracks the unbiased variance. If the biased one is wanted, cuDNN
  // writes the batch's mean and variance to scratch memory.
  const bool biased = !options_.semantics.unbiased_running_variance;
  const double weight = MergeOptionsFor(options_, running).weight_of_batch;
  float* mean = Floats(running.mean, nullptr);
  float* variance = Floats(running.variance, nullptr);
  if (running.tracked() && biased) {
    mean = Scratch();
    variance = mean + options_.channels;
    // cuDNN may weight the old contents with 0, so they must not be NaN.
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(mean, 0, ScratchBytes(), kernels_.stream()),
                   "cudaMemsetAsync"));
  }
  LOCKSTEP_RETURN_IF_ERROR(CudnnStatus(
      cudnnBatchNormalizationForwardTrainingEx(
          cudnn_.get(), mode, kOps, &kOne, &kZero, activations_.get(),
          buffers.x.data, nullptr, nullptr, activations_.get(), buffers.y.data,
          channels_.get(), Floats(buffers.weight, Ones()),
          Floats(buffers.bias, Zeros()), biased ? 1 : weight, mean, variance,
          options_.epsilon, saved + record.mean_offset(),
          saved + record.second_offset(), nullptr, workspace_.memory.get(),
          workspace_.bytes, trained.reserve.memory.get(),
          trained.reserve.bytes),
      "cudnnBatchNormalizationForwardTrainingEx"));
  trained.by_cudnn = true;
  trained.shape = buffers.shape;
  trained.type = buffers.x.type;
  const int64_t count = buffers.shape.values_per_channel();
  if (running.tracked() && biased) {
    LOCKSTEP_RETURN_IF_ERROR(
        kernels_.TrackBiased(record, mean, variance, count, weight, running));
  }
  return CountBatch(options_, count, running);
}

absl::Status CudnnBatchNorm::Infer(const ForwardBuffers& buffers) {
  constexpr auto kMode = CUDNN_BATCHNORM_SPATIAL;
  LOCKSTEP_RETURN_IF_ERROR(Describe(buffers.shape, buffers.x.type, kMode));
  // Backward of an evaluation needs the statistics.
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

absl::Status CudnnBatchNorm::BackwardByKernels(
    const BackwardBuffers& buffers, absl::FunctionRef<void()> gradients_ready) {
  const int64_t count = buffers.shape.values_per_channel();
  if (buffers.training && count > 0) {
    // cuDNN's forward does not store the count in `saved`, so that it does
    // nothing that PyTorch does not do. The count is set byte by byte: a copy
    // from the stack may wait for the stream, and cannot be captured.
    auto* const saved = const_cast<std::byte*>(buffers.saved.bytes());
    for (size_t i = 0; i < sizeof(count); ++i) {
      LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
          cudaMemsetAsync(saved + i, static_cast<int>(count >> (8 * i) & 0xff),
                          1, kernels_.stream()),
          "cudaMemsetAsync"));
    }
  }
  return kernel_layer_->Backward(buffers, gradients_ready);
}

absl::Status CudnnBatchNorm::Backward(
    const BackwardBuffers& buffers, absl::FunctionRef<void()> gradients_ready) {
  LOCKSTEP_RETURN_IF_ERROR(CheckBackwards(options_, buffers));
  LOCKSTEP_RETURN_IF_ERROR(CheckLayout(buffers.shape.layout));
  const auto trained = trained_.find(buffers.saved.data);
  const bool plain =
      buffers.training && !buffers.relu && buffers.dresidual.count == 0 &&
      buffers.dx.data != buffers.dy.data && trained != trained_.end() &&
      trained->second.by_cudnn && trained->second.shape == buffers.shape &&
      trained->second.type == buffers.x.type;
  if (!plain) return BackwardByKernels(buffers, gradients_ready);
  const cudnnBatchNormMode_t mode = TrainingMode(buffers.shape);
  LOCKSTEP_RETURN_IF_ERROR(Describe(buffers.shape, buffers.x.type, mode));
  const StatisticsRecord record = RecordOf(options_.channels, buffers.x.type);
  const std::byte* const saved = buffers.saved.bytes();
  LOCKSTEP_RETURN_IF_ERROR(CudnnStatus(
      cudnnBatchNormalizationBackwardEx(
          cudnn_.get(), mode, kOps, &kOne, &kZero, &kOne, &kZero,
          activations_.get(), buffers.x.data, nullptr, nullptr,
          activations_.get(), buffers.dy.data, nullptr, nullptr,
          activations_.get(), buffers.dx.data, channels_.get(),
          Floats(buffers.weight, Ones()), nullptr,
          Floats(buffers.dweight, Scratch()),
          Floats(buffers.dbias, Scratch() + options_.channels),
          options_.epsilon, saved + record.mean_offset(),
          saved + record.second_offset(), nullptr, workspace_.memory.get(),
          workspace_.bytes, trained->second.reserve.memory.get(),
          trained->second.reserve.bytes),
      "cudnnBatchNormalizationBackwardEx"));
  gradients_ready();
  return absl::OkStatus();
}

}  // namespace lockstep
