// Binds a BatchNorm to a layer's parameters and buffers.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "models/cpu/batch_norm_plan.h"
#include "models/cpu/layer.h"
#include "models/cpu/layers.h"
#include "models/cpu/onednn.h"
#include "models/model.h"
#include "syncbn/activations.h"
#include "syncbn/batch_norm.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {
namespace {

constexpr DataType kFloat = DataType::kFloat32;

ActivationShape ActivationsOf(const Shape& shape) {
  return {.n = shape.n,
          .c = shape.c,
          .hw = shape.h * shape.w,
          .layout = Layout::kNhwc};
}

absl::Status CheckTensors(const BatchNormLayerOptions& options,
                          const LayerContext& context, int64_t channels) {
  for (const int index : {options.weight, options.bias}) {
    LOCKSTEP_RETURN_IF_ERROR(
        CheckParameter(options.name, *context.parameters, index, {channels}));
  }
  for (const int index : {options.running_mean, options.running_variance}) {
    LOCKSTEP_RETURN_IF_ERROR(
        CheckBuffer(options.name, *context.buffers, index, {channels}));
  }
  return CheckBuffer(options.name, *context.buffers, options.batches, {});
}

class BatchNormLayer : public Layer {
 public:
  explicit BatchNormLayer(BatchNormLayerOptions options)
      : options_(std::move(options)) {}

  int batch_norm_count() const override { return 1; }

  absl::StatusOr<std::unique_ptr<LayerPlan>> Plan(
      const LayerContext& context, const Shape& input,
      bool /*input_gradient*/) const override {
    return PlanBatchNorm(options_, context, input);
  }

 private:
  BatchNormLayerOptions options_;
};

// `status` with the layer's name, which those of BatchNorm lack.
absl::Status Named(const std::string& layer, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(layer, ": ", status.message()));
}

}  // namespace

BatchNormPlan::BatchNormPlan(const LayerContext& context,
                             BatchNormLayerOptions options, const Shape& shape,
                             std::unique_ptr<BatchNorm> batch_norm)
    : context_(context),
      options_(std::move(options)),
      shape_(shape),
      batch_norm_(std::move(batch_norm)) {}

int64_t BatchNormPlan::saved_size() const {
  const int64_t bytes = batch_norm_->SavedBytes(kFloat);
  return (bytes + sizeof(float) - 1) / sizeof(float);
}

absl::Status BatchNormPlan::ForwardAdding(const Forwards& buffers,
                                          const float* residual) {
  const int64_t size = shape_.size();
  const Parameters& parameters = *context_.parameters;
  Buffers& statistics = *context_.buffers;
  return Named(
      options_.name,
      batch_norm_->Forward(
          {.shape = ActivationsOf(shape_),
           .training = buffers.training,
           .relu = options_.relu,
           .x = ConstBuffer(buffers.x, size, kFloat),
           .residual =
               ConstBuffer(residual, residual == nullptr ? 0 : size, kFloat),
           .weight = parameters.value(options_.weight),
           .bias = parameters.value(options_.bias),
           .running = {.mean = statistics.value(options_.running_mean),
                       .variance = statistics.value(options_.running_variance),
                       .batches = &statistics.counter(options_.batches)},
           .y = Buffer(buffers.y, size, kFloat),
           .saved = Buffer(buffers.saved, batch_norm_->SavedBytes(kFloat),
                           DataType::kUInt8)}));
}

absl::Status BatchNormPlan::BackwardAdding(const Backwards& buffers,
                                           float* dresidual,
                                           Model::GradientReady ready) {
  const int64_t size = shape_.size();
  Parameters& parameters = *context_.parameters;
  // dx is always computed: where nobody wants it, in place of dy.
  float* dx = buffers.dx == nullptr ? buffers.dy : buffers.dx;
  return Named(
      options_.name,
      batch_norm_->Backward(
          {.shape = ActivationsOf(shape_),
           .training = true,
           .relu = options_.relu,
           .x = ConstBuffer(buffers.x, size, kFloat),
           .y = ConstBuffer(buffers.y, size, kFloat),
           .dy = ConstBuffer(buffers.dy, size, kFloat),
           .weight = ConstBuffer(parameters.value(options_.weight)),
           .saved = ConstBuffer(buffers.saved, batch_norm_->SavedBytes(kFloat),
                                DataType::kUInt8),
           .dweight = parameters.gradient(options_.weight),
           .dbias = parameters.gradient(options_.bias),
           .dx = Buffer(dx, size, kFloat),
           .dresidual =
               Buffer(dresidual, dresidual == nullptr ? 0 : size, kFloat)},
          [&] {
            ready(options_.bias);
            ready(options_.weight);
          }));
}

absl::StatusOr<std::unique_ptr<BatchNormPlan>> PlanBatchNorm(
    const BatchNormLayerOptions& options, const LayerContext& context,
    const Shape& input) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTensors(options, context, input.c));
  const BatchNormOptions batch_norm_options = {.channels = input.c};
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<BatchNorm> batch_norm,
      context.batch_norm_group == nullptr
          ? SyncBatchNorm::CreateLocal(batch_norm_options,
                                       *context.batch_norm_kernels)
          : SyncBatchNorm::Create(batch_norm_options,
                                  *context.batch_norm_kernels,
                                  *context.batch_norm_group));
  return std::make_unique<BatchNormPlan>(context, options, input,
                                         std::move(batch_norm));
}

std::unique_ptr<Layer> CreateBatchNormLayer(BatchNormLayerOptions options) {
  return std::make_unique<BatchNormLayer>(std::move(options));
}

}  // namespace lockstep
