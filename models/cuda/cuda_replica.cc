#include "models/cuda/cuda_replica.h"

#include <cuda_runtime.h>
#include <cudnn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/cuda/convolution.h"
#include "models/cuda/dropout.h"
#include "models/cuda/layer_norm.h"
#include "models/cuda/loss.h"
#include "models/cuda/loss_scale.h"
#include "models/cuda/optimizer.h"
#include "models/cuda/plan.h"
#include "models/cuda/pointwise.h"
#include "models/cuda/pool.h"
#include "models/cuda/product.h"
#include "models/cuda/sequence.h"
#include "models/cuda/softmax.h"
#include "models/cuda/weight_layout.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/optimizer.h"
#include "models/program/operation_plan.h"
#include "models/program/program.h"
#include "models/program/step_memory.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/cudnn_status.h"

namespace lockstep {
namespace {

// cuDNN needs parameters at multiples of 16 bytes; these are 64.
constexpr int64_t kParameterAlignment = 16;

Parameters ParametersInGaps(const Network& network) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  for (const TensorDescription& parameter : network.parameters()) {
    shapes.emplace_back(parameter.name, parameter.shape);
  }
  return Parameters(std::move(shapes), kParameterAlignment);
}

// Device memory for `count` floats, 0, with its owner.
struct DeviceFloats {
  std::span<float> span;
  std::shared_ptr<void> owner;
};

absl::StatusOr<DeviceFloats> AllocateFloats(size_t count, cudaStream_t stream) {
  const auto bytes = static_cast<int64_t>(count * sizeof(float));
  LOCKSTEP_ASSIGN_OR_RETURN(DeviceMemory memory,
                            AllocateDeviceMemory(std::max<int64_t>(bytes, 1)));
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaMemsetAsync(memory.get(), 0, bytes, stream), "cudaMemsetAsync"));
  auto* const floats = reinterpret_cast<float*>(memory.get());
  return DeviceFloats{{floats, count},
                      std::shared_ptr<std::byte>(std::move(memory))};
}

}  // namespace

CudaReplica::CudaReplica(Network network, cudaStream_t stream,
                         const CudaReplicaOptions& options)
    : network_(std::move(network)),
      stream_(stream),
      share_memory_(options.share_memory),
      optimizer_(options.optimizer),
      layouts_(WeightLayoutsOf(network_)),
      parameters_(ParametersInGaps(network_)),
      buffers_(CreateBuffers(network_)) {}

CudaReplica::~CudaReplica() { cudaStreamSynchronize(stream_); }

absl::StatusOr<std::unique_ptr<CudaReplica>> CudaReplica::Create(
    Network network, cudaStream_t stream, const CudaReplicaOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(network.status());
  LOCKSTEP_RETURN_IF_ERROR(CheckEndsInClasses(network));
  std::unique_ptr<CudaReplica> replica(
      new CudaReplica(std::move(network), stream, options));
  LOCKSTEP_RETURN_IF_ERROR(replica->AllocateTensors(options));
  LOCKSTEP_RETURN_IF_ERROR(replica->OpenLibraries());
  replica->context_ = {.stream = stream,
                       .cudnn = replica->cudnn_.get(),
                       .cublas = replica->cublas_.get(),
                       .card = replica->card_.get(),
                       .attention_plans = &replica->attention_plans_,
                       .precision = options.precision,
                       .parameters = &replica->parameters_,
                       .rounded = replica->rounded_.get(),
                       .buffers = &replica->buffers_,
                       .batch_norm_kernels = replica->batch_norm_kernels_.get(),
                       .numbers = &replica->numbers_};
  const Network& described = replica->network_;
  LOCKSTEP_RETURN_IF_ERROR(replica->Upload(
      CreateParameters(described, options.seed), CreateBuffers(described)));
  return replica;
}

absl::Status CudaReplica::AllocateTensors(const CudaReplicaOptions& options) {
  const size_t count = parameters_.values().size();
  const DataType type = TypeOf(options.precision);
  if (type != DataType::kFloat32) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        rounded_, AllocateDeviceMemory(std::max<int64_t>(
                      static_cast<int64_t>(count) * SizeOf(type), 1)));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(DeviceFloats values,
                            AllocateFloats(count, stream_));
  parameters_.PlaceValues(values.span, std::move(values.owner));
  LOCKSTEP_ASSIGN_OR_RETURN(DeviceFloats gradients,
                            AllocateFloats(count, stream_));
  parameters_.PlaceGradients(gradients.span, std::move(gradients.owner));
  LOCKSTEP_ASSIGN_OR_RETURN(DeviceFloats floats,
                            AllocateFloats(buffers_.floats().size(), stream_));
  buffers_.PlaceFloats(floats.span, std::move(floats.owner));
  if (type == DataType::kFloat16) {
    LOCKSTEP_ASSIGN_OR_RETURN(loss_scale_,
                              AllocateDeviceMemory(sizeof(LossScale)));
    const LossScale first = {.scale = options.first_loss_scale};
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(loss_scale_.get(), &first, sizeof(first),
                                   cudaMemcpyHostToDevice, stream_),
                   "cudaMemcpyAsync"));
  }
  LOCKSTEP_RETURN_IF_ERROR(AllocateOptimizer(static_cast<int64_t>(count)));
  LOCKSTEP_ASSIGN_OR_RETURN(metrics_,
                            AllocateDeviceMemory(sizeof(DeviceMetrics)));
  return CudaStatus(
      cudaMemsetAsync(metrics_.get(), 0, sizeof(DeviceMetrics), stream_),
      "cudaMemsetAsync");
}

absl::Status CudaReplica::AllocateOptimizer(int64_t count) {
  if (optimizer_.IsPlainSgd()) return absl::OkStatus();
  const auto allocate = [&](int64_t bytes) -> absl::StatusOr<DeviceMemory> {
    LOCKSTEP_ASSIGN_OR_RETURN(DeviceMemory memory, AllocateDeviceMemory(bytes));
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
        cudaMemsetAsync(memory.get(), 0, bytes, stream_), "cudaMemsetAsync"));
    return memory;
  };
  LOCKSTEP_ASSIGN_OR_RETURN(optimizer_step_,
                            allocate(sizeof(DeviceOptimizerStep)));
  for (size_t i = 0; i < StateNames(optimizer_).size(); ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        optimizer_arrays_.emplace_back(),
        allocate(count * static_cast<int64_t>(sizeof(float))));
  }
  return absl::OkStatus();
}

absl::Status CudaReplica::OpenLibraries() {
  cudnnHandle_t handle = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(CudnnStatus(cudnnCreate(&handle), "cudnnCreate"));
  cudnn_.reset(handle);
  LOCKSTEP_RETURN_IF_ERROR(
      CudnnStatus(cudnnSetStream(handle, stream_), "cudnnSetStream"));
  LOCKSTEP_ASSIGN_OR_RETURN(CudnnDevice card, CudnnDevice::OfHandle(handle));
  card_ = std::make_unique<CudnnDevice>(std::move(card));
  LOCKSTEP_ASSIGN_OR_RETURN(batch_norm_kernels_,
                            CudaBatchNormKernels::Create(stream_));
  LOCKSTEP_ASSIGN_OR_RETURN(cublas_, CreateCublasLt());
  for (const auto load :
       {LoadDropoutKernels, LoadLayerNormKernels, LoadLossKernels,
        LoadLossScaleKernels, LoadOptimizerKernels, LoadPointwiseKernels,
        LoadPoolKernels, LoadSequenceKernels, LoadSoftmaxKernels}) {
    LOCKSTEP_RETURN_IF_ERROR(load());
  }
  return absl::OkStatus();
}

absl::Status CudaReplica::Copy(std::span<float> device,
                               std::span<const float> host) {
  return CudaStatus(
      cudaMemcpyAsync(device.data(), host.data(), host.size_bytes(),
                      cudaMemcpyHostToDevice, stream_),
      "cudaMemcpyAsync");
}

absl::Status CudaReplica::CopyBack(std::span<const float> device,
                                   std::span<float> host) {
  return CudaStatus(
      cudaMemcpyAsync(host.data(), device.data(), host.size_bytes(),
                      cudaMemcpyDeviceToHost, stream_),
      "cudaMemcpyAsync");
}

absl::Status CudaReplica::Upload(const Parameters& parameters,
                                 const Buffers& buffers) {
  std::vector<float> values(parameters_.values().size());
  for (int i = 0; i < parameters_.count(); ++i) {
    const TensorSpec& spec = parameters_.specs()[i];
    ToGpuOrder(layouts_[i], parameters.value(i), spec.Part(std::span(values)));
  }
  LOCKSTEP_RETURN_IF_ERROR(Copy(parameters_.values(), values));
  return UploadBuffers(buffers);
}

absl::Status CudaReplica::UploadBuffers(const Buffers& buffers) {
  std::ranges::copy(buffers.counters(), buffers_.counters().begin());
  LOCKSTEP_RETURN_IF_ERROR(Copy(buffers_.floats(), buffers.floats()));
  return CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

absl::Status CudaReplica::DownloadBuffers(Buffers& buffers) {
  std::ranges::copy(buffers_.counters(), buffers.counters().begin());
  LOCKSTEP_RETURN_IF_ERROR(CopyBack(buffers_.floats(), buffers.floats()));
  return CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

template <typename Store>
absl::Status CudaReplica::CopyParameters(std::span<const float> device,
                                         const Store& store) {
  std::vector<float> host(device.size());
  LOCKSTEP_RETURN_IF_ERROR(CopyBack(device, host));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
  for (int i = 0; i < parameters_.count(); ++i) {
    store(i, parameters_.specs()[i].Part(std::span<const float>(host)));
  }
  return absl::OkStatus();
}

absl::Status CudaReplica::Download(Parameters& parameters, Buffers& buffers) {
  LOCKSTEP_RETURN_IF_ERROR(DownloadBuffers(buffers));
  return CopyParameters(parameters_.values(),
                        [&](int i, std::span<const float> part) {
                          ToHostOrder(layouts_[i], part, parameters.value(i));
                        });
}

absl::Status CudaReplica::DownloadGradients(Parameters& parameters) {
  LOCKSTEP_RETURN_IF_ERROR(Unscale());
  return CopyParameters(
      parameters_.gradients(), [&](int i, std::span<const float> part) {
        ToHostOrder(layouts_[i], part, parameters.gradient(i));
      });
}

std::vector<std::span<float>> CudaReplica::optimizer_arrays() {
  std::vector<std::span<float>> arrays;
  for (const DeviceMemory& array : optimizer_arrays_) {
    arrays.emplace_back(reinterpret_cast<float*>(array.get()),
                        parameters_.values().size());
  }
  return arrays;
}

std::span<int64_t> CudaReplica::optimizer_steps() {
  if (optimizer_step_ == nullptr) return {};
  return std::span(&optimizer_step()->steps, 1);
}

absl::Status CudaReplica::UploadOptimizer(const OptimizerState& state) {
  int64_t count = 0;
  for (const TensorSpec& spec : parameters_.specs()) count += spec.size;
  LOCKSTEP_RETURN_IF_ERROR(CheckState(optimizer_, count, state));
  std::vector<float> values(parameters_.values().size());
  const std::vector<std::span<float>> arrays = optimizer_arrays();
  for (size_t array = 0; array < arrays.size(); ++array) {
    std::span<const float> host = state.arrays[array];
    for (int i = 0; i < parameters_.count(); ++i) {
      const TensorSpec& spec = parameters_.specs()[i];
      ToGpuOrder(layouts_[i], host.first(spec.size),
                 spec.Part(std::span(values)));
      host = host.subspan(spec.size);
    }
    LOCKSTEP_RETURN_IF_ERROR(Copy(arrays[array], values));
  }
  for (int64_t& steps : optimizer_steps()) {
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(&steps, &state.steps, sizeof(steps),
                                   cudaMemcpyHostToDevice, stream_),
                   "cudaMemcpyAsync"));
  }
  return CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

absl::StatusOr<OptimizerState> CudaReplica::DownloadOptimizer() {
  OptimizerState state;
  for (const int64_t& steps : optimizer_steps()) {
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(&state.steps, &steps, sizeof(steps),
                                   cudaMemcpyDeviceToHost, stream_),
                   "cudaMemcpyAsync"));
  }
  for (const std::span<const float> array : optimizer_arrays()) {
    std::vector<float>& host = state.arrays.emplace_back();
    LOCKSTEP_RETURN_IF_ERROR(
        CopyParameters(array, [&](int i, std::span<const float> part) {
          const size_t at = host.size();
          host.resize(at + part.size());
          ToHostOrder(layouts_[i], part, std::span(host).subspan(at));
        }));
  }
  return state;
}

absl::StatusOr<LossScale> CudaReplica::DownloadLossScale() {
  LossScale scale;
  if (loss_scale_ == nullptr) return scale;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(&scale, loss_scale_.get(), sizeof(scale),
                                 cudaMemcpyDeviceToHost, stream_),
                 "cudaMemcpyAsync"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
  return scale;
}

int CudaReplica::ConvertSyncBatchNorm(Communicator& group) {
  const int count = network_.Count<BatchNormOp>();
  if (count == 0) return 0;
  context_.batch_norm_group = &group;
  ClearPrograms();
  return count;
}

// Enqueued work uses cuDNN's plans.
void CudaReplica::ClearPrograms() {
  cudaStreamSynchronize(stream_);
  programs_.clear();
}

absl::Status CudaReplica::CheckOnDevice(const Batch& batch) const {
  const size_t n = batch.labels.size();
  const size_t images = n * network_.input_shape().size();
  if (batch.images.size() != images) {
    return absl::InvalidArgumentError(
        absl::StrCat("the images have ", batch.images.size(), " floats; ", n,
                     " labels need ", images));
  }
  if (batch.shares.size() != batch.other_labels.size() ||
      (!batch.shares.empty() && batch.shares.size() != n)) {
    return absl::InvalidArgumentError(absl::StrCat(
        batch.shares.size(), " shares and ", batch.other_labels.size(),
        " other labels for ", n, " labels"));
  }
  if (!batch.samples.empty() && batch.samples.size() != n) {
    return absl::InvalidArgumentError(absl::StrCat(
        batch.samples.size(), " sample numbers for ", n, " labels"));
  }
  constexpr uintptr_t kCudnnAlignment = 16;
  if (reinterpret_cast<uintptr_t>(batch.images.data()) % kCudnnAlignment != 0) {
    return absl::InvalidArgumentError(
        "the images are not aligned to 16 bytes, as cuDNN needs them");
  }
  return absl::OkStatus();
}

absl::StatusOr<Program> CudaReplica::MakeProgram(int64_t n) {
  std::vector<std::unique_ptr<OperationPlan>> plans;
  for (const Network::Operation& operation : network_.operations()) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        std::unique_ptr<OperationPlan> plan,
        CreateCudaPlan(context_, RequestFor(network_, operation, n)));
    plans.push_back(std::move(plan));
  }
  const DataType type = context_.type();
  return Program(network_, std::move(plans), n, SizeOf(type), share_memory_,
                 [this, n, type](int value, void* gradient, const void* part) {
                   return AddInto(type, n * network_.ShapeOf(value).size(),
                                  part, gradient, stream_);
                 });
}

absl::StatusOr<Program*> CudaReplica::Prepare(int64_t n, bool training) {
  // A run uses few batch sizes: the batch, the last of an epoch, the
  // evaluation's.
  constexpr size_t kMaxPrograms = 8;
  auto found = programs_.find(n);
  if (found == programs_.end()) {
    if (programs_.size() == kMaxPrograms) ClearPrograms();
    LOCKSTEP_ASSIGN_OR_RETURN(Program program, MakeProgram(n));
    found = programs_.emplace(n, std::make_shared<Program>(std::move(program)))
                .first;
  }
  const int64_t bytes =
      LossBytes(n) + ImageBytes(n) + found->second->bytes(training);
  if (bytes > memory_bytes_) {
    memory_bytes_ = 0;
    memory_.reset();  // Freeing waits for work; a graph may keep the memory.
    LOCKSTEP_ASSIGN_OR_RETURN(memory_, AllocateDeviceMemory(bytes));
    memory_bytes_ = bytes;
  }
  return found->second.get();
}

int64_t CudaReplica::ImageBytes(int64_t n) const {
  return context_.is_float32()
             ? 0
             : AlignedBytes(n * network_.input_shape().size() *
                            SizeOf(context_.type()));
}

Program::Operands CudaReplica::OperandsOf(const Batch& batch) const {
  const auto n = static_cast<int64_t>(batch.labels.size());
  void* const images = Offset(memory_.get(), LossBytes(n));
  return {.memory = Offset(images, ImageBytes(n)),
          .input = context_.is_float32() ? batch.images.data() : images,
          .batch = &batch};
}

absl::Status CudaReplica::RoundInputs(const Batch& batch) {
  if (context_.is_float32()) return absl::OkStatus();
  const DataType type = context_.type();
  const std::span<const float> values = parameters_.values();
  LOCKSTEP_RETURN_IF_ERROR(RoundOnGpu(type, static_cast<int64_t>(values.size()),
                                      values.data(), rounded_.get(), stream_));
  return RoundOnGpu(type, static_cast<int64_t>(batch.images.size()),
                    batch.images.data(),
                    const_cast<void*>(OperandsOf(batch).input), stream_);
}

absl::StatusOr<Program*> CudaReplica::Forward(const Batch& batch,
                                              bool training) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      Program * program,
      Prepare(static_cast<int64_t>(batch.labels.size()), training));
  LOCKSTEP_RETURN_IF_ERROR(RoundInputs(batch));
  LOCKSTEP_RETURN_IF_ERROR(program->Forward(OperandsOf(batch), training));
  return program;
}

absl::Status CudaReplica::EnqueueLoss(const Batch& batch, float gradient_scale,
                                      const Program& program, bool training) {
  void* const memory = OperandsOf(batch).memory;
  const bool is_mixed = !batch.shares.empty();
  return SoftmaxCrossEntropyOnGpu(
      {.n = static_cast<int64_t>(batch.labels.size()),
       .classes = network_.classes(),
       .type = context_.type(),
       .logits = program.output(memory, training),
       .labels = batch.labels.data(),
       .other_labels = is_mixed ? batch.other_labels.data() : nullptr,
       .shares = is_mixed ? batch.shares.data() : nullptr,
       .gradient_scale = gradient_scale,
       .loss_scale = loss_scale_ == nullptr ? nullptr : &loss_scale()->scale,
       .gradient = training ? program.output_gradient(memory) : nullptr,
       .sample_losses = reinterpret_cast<double*>(memory_.get())},
      reinterpret_cast<DeviceMetrics*>(metrics_.get()), stream_);
}

absl::Status CudaReplica::Enqueue(const DeviceBatch& on_device,
                                  float gradient_scale,
                                  Model::GradientReady ready) {
  const Batch& batch = on_device.batch;
  numbers_ = on_device.numbers;
  LOCKSTEP_RETURN_IF_ERROR(CheckOnDevice(batch));
  gradients_are_scaled_ = loss_scale_ != nullptr;
  // Ranks of a group exchange messages even if a batch is empty.
  if (batch.labels.empty() && context_.batch_norm_group == nullptr) {
    const std::span<float> gradients = parameters_.gradients();
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
        cudaMemsetAsync(gradients.data(), 0, gradients.size_bytes(), stream_),
        "cudaMemsetAsync"));
    for (int i = parameters_.count(); i-- > 0;) ready(i);
    return absl::OkStatus();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(Program * program,
                            Forward(batch, /*training=*/true));
  LOCKSTEP_RETURN_IF_ERROR(
      EnqueueLoss(batch, gradient_scale, *program, /*training=*/true));
  return program->Backward(OperandsOf(batch), ready);
}

absl::Status CudaReplica::EnqueueEvaluation(const DeviceBatch& on_device) {
  const Batch& batch = on_device.batch;
  numbers_ = on_device.numbers;
  LOCKSTEP_RETURN_IF_ERROR(CheckOnDevice(batch));
  if (batch.labels.empty()) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(Program * program,
                            Forward(batch, /*training=*/false));
  return EnqueueLoss(batch, /*gradient_scale=*/0, *program, /*training=*/false);
}

absl::Status CudaReplica::WarmUp(int64_t samples, BatchCopy& copy) {
  const std::vector<float> images(samples * network_.input_shape().size());
  const std::vector<int32_t> labels(samples);
  LOCKSTEP_ASSIGN_OR_RETURN(const DeviceBatch batch,
                            copy.Enqueue({.images = images, .labels = labels},
                                         /*learning_rate=*/0, stream_));
  LOCKSTEP_RETURN_IF_ERROR(Enqueue(batch, /*gradient_scale=*/1, [](int) {}));
  return TakeMetrics().status();
}

absl::StatusOr<Metrics> CudaReplica::TakeMetrics() {
  DeviceMetrics sums = {};
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(&sums, metrics_.get(), sizeof(sums),
                                 cudaMemcpyDeviceToHost, stream_),
                 "cudaMemcpyAsync"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(metrics_.get(), 0, sizeof(sums), stream_),
                 "cudaMemsetAsync"));
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
  return Metrics{.loss_sum = sums.loss_sum,
                 .correct = sums.correct,
                 .samples = sums.samples};
}

absl::Status CudaReplica::Unscale() {
  if (!gradients_are_scaled_) return absl::OkStatus();
  gradients_are_scaled_ = false;
  const std::span<float> gradients = parameters_.gradients();
  return UnscaleGradients(static_cast<int64_t>(gradients.size()),
                          gradients.data(), loss_scale(), stream_);
}

absl::Status CudaReplica::Update(const float* learning_rate) {
  OptimizerArrays arrays = {
      .count = static_cast<int64_t>(parameters_.values().size()),
      .values = parameters_.values().data(),
      .gradients = parameters_.gradients().data()};
  if (optimizer_.IsPlainSgd()) {
    return SgdUpdateOnGpu(arrays.count, arrays.values, arrays.gradients,
                          learning_rate, loss_scale(), stream_);
  }
  const std::vector<std::span<float>> state = optimizer_arrays();
  if (!state.empty()) arrays.first = state.front().data();
  if (state.size() > 1) arrays.second = state.back().data();
  LOCKSTEP_RETURN_IF_ERROR(BeginOptimizerStep(
      optimizer_, learning_rate, loss_scale(), optimizer_step(), stream_));
  return UpdateOnGpu(optimizer_.kind, arrays, optimizer_step(), loss_scale(),
                     stream_);
}

absl::Status CudaReplica::EnqueueUpdate(const StepNumbers* numbers) {
  LOCKSTEP_RETURN_IF_ERROR(Unscale());
  LOCKSTEP_RETURN_IF_ERROR(Update(&numbers->learning_rate));
  return loss_scale_ == nullptr ? absl::OkStatus()
                                : EndScaledStep(loss_scale(), stream_);
}

absl::Status CudaReplica::Plan(int64_t n) {
  return Prepare(n, /*training=*/true).status();
}

std::shared_ptr<const void> CudaReplica::WorkOf(int64_t n) const {
  using Work = std::pair<std::shared_ptr<Program>, std::shared_ptr<std::byte>>;
  const auto found = programs_.find(n);
  return std::make_shared<const Work>(
      found == programs_.end() ? nullptr : found->second, memory_);
}

}  // namespace lockstep
