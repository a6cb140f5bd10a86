// Batch norm and layer norm, bound to a layer's parameters and buffers.
#include "models/cpu/norm.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "models/cpu/onednn.h"
#include "models/cpu/plan.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"
#include "models/program/step_memory.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "syncbn/batch_norm.h"
#include "syncbn/sync_batch_norm.h"

namespace lockstep {
namespace {

// `saved` holds the batch's statistics. In training on a group, every rank must
// run Forward and Backward at the same time, because their messages wait for
// each other. Planning sends no messages. Errors, beside OperationPlan's:
// kInvalidArgument for a training batch of one value per channel over all
// ranks.
class BatchNormPlan : public OperationPlan {
 public:
  BatchNormPlan(const PlanContext& context, const PlanRequest& request,
                std::unique_ptr<BatchNorm> batch_norm)
      : context_(context),
        name_(request.operation->name),
        op_(std::get<BatchNormOp>(request.operation->kind)),
        size_(request.x.size()),
        shape_({.n = request.x.n,
                .c = request.x.c,
                .hw = request.x.h * request.x.w,
                .layout = context.layout}),
        batch_norm_(std::move(batch_norm)) {
    saved_bytes = batch_norm_->SavedBytes(context.type);
    backward_reads_y = op_.relu;
    // If there is a second input, its gradient takes dy's memory.
    dsecond_may_share_dy = true;
    dx_may_share_dy = request.operation->inputs.size() == 1;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    const Parameters& parameters = *context_.parameters;
    Buffers& statistics = *context_.buffers;
    return Named(batch_norm_->Forward(
        {.shape = shape_,
         .training = buffers.training,
         .relu = op_.relu,
         .x = Activations(buffers.x),
         .residual = Activations(buffers.second),
         .weight = parameters.value(op_.weight),
         .bias = parameters.value(op_.bias),
         .running = {.mean = statistics.value(op_.running_mean),
                     .variance = statistics.value(op_.running_variance),
                     .batches = &statistics.counter(op_.batches)},
         .y = Activations(buffers.y),
         .saved = Buffer(buffers.saved, saved_bytes, DataType::kUInt8)}));
  }

  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady ready) override {
    Parameters& parameters = *context_.parameters;
    // dx is always computed; if the caller does not want it, it overwrites dy.
    void* const dx = buffers.dx == nullptr ? buffers.dy : buffers.dx;
    return Named(batch_norm_->Backward(
        {.shape = shape_,
         .training = true,
         .relu = op_.relu,
         .x = Activations(buffers.x),
         .y = Activations(buffers.y),
         .dy = Activations(static_cast<const void*>(buffers.dy)),
         .weight = ConstBuffer(parameters.value(op_.weight)),
         .saved = ConstBuffer(buffers.saved, saved_bytes, DataType::kUInt8),
         .dweight = parameters.gradient(op_.weight),
         .dbias = parameters.gradient(op_.bias),
         .dx = Activations(dx),
         .dresidual = Activations(buffers.dsecond)},
        [&] {
          ready(op_.bias);
          ready(op_.weight);
        }));
  }

 private:
  ConstBuffer Activations(const void* data) const {
    return ConstBuffer(data, data == nullptr ? 0 : size_, context_.type);
  }
  Buffer Activations(void* data) const {
    return Buffer(data, data == nullptr ? 0 : size_, context_.type);
  }

  // Returns `status` with the layer's name, which BatchNorm's errors lack.
  absl::Status Named(const absl::Status& status) const {
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat(name_, ": ", status.message()));
  }

  PlanContext context_;
  const std::string name_;
  const BatchNormOp op_;
  const int64_t size_;
  const ActivationShape shape_;
  const std::unique_ptr<BatchNorm> batch_norm_;
};

// Layer norm by oneDNN. `saved` holds each position's mean and variance.
class LayerNormPlan : public OperationPlan {
 public:
  // Throws dnnl::error.
  LayerNormPlan(const PlanContext& context, const PlanRequest& request)
      : context_(context),
        name_(request.operation->name),
        op_(std::get<LayerNormOp>(request.operation->kind)) {
    using dnnl::memory;
    const Shape& shape = request.x;
    const int64_t rows = shape.n * shape.h * shape.w;
    const memory::desc x = Rows(rows, shape.c, context.type);
    const auto epsilon = static_cast<float>(op_.epsilon);
    const auto forward = onednn::LayerNormForward(context.engine, x, epsilon);
    const auto backward =
        onednn::LayerNormBackward(forward, context.engine, x, epsilon);
    const memory::desc scale = Flat(shape.c, DataType::kFloat32);
    forward_ =
        Primitive(context.engine, dnnl::layer_normalization_forward(forward),
                  {{DNNL_ARG_SRC, x},
                   {DNNL_ARG_MEAN, forward.mean_desc()},
                   {DNNL_ARG_VARIANCE, forward.variance_desc()},
                   {DNNL_ARG_SCALE, scale},
                   {DNNL_ARG_SHIFT, scale},
                   {DNNL_ARG_DST, x},
                   {DNNL_ARG_SCRATCHPAD, forward.scratchpad_desc()}});
    backward_ =
        Primitive(context.engine, dnnl::layer_normalization_backward(backward),
                  {{DNNL_ARG_SRC, x},
                   {DNNL_ARG_MEAN, forward.mean_desc()},
                   {DNNL_ARG_VARIANCE, forward.variance_desc()},
                   {DNNL_ARG_SCALE, scale},
                   // oneDNN 2 requires the shift, but does not use it.
                   {DNNL_ARG_SHIFT, scale},
                   {DNNL_ARG_DIFF_SCALE, scale},
                   {DNNL_ARG_DIFF_SHIFT, scale},
                   {DNNL_ARG_DIFF_DST, x},
                   {DNNL_ARG_DIFF_SRC, x},
                   {DNNL_ARG_SCRATCHPAD, backward.scratchpad_desc()}});
    mean_bytes_ = AlignedBytes(forward.mean_desc());
    saved_bytes = mean_bytes_ + AlignedBytes(forward.variance_desc());
    scratch_bytes = std::max(AlignedBytes(forward.scratchpad_desc()),
                             AlignedBytes(backward.scratchpad_desc()));
    dx_may_share_dy = true;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return CatchOnednn(name_, [&] {
      const Parameters& parameters = *context_.parameters;
      forward_.Run(context_.stream,
                   {{DNNL_ARG_SRC, buffers.x},
                    {DNNL_ARG_MEAN, buffers.saved},
                    {DNNL_ARG_VARIANCE, Offset(buffers.saved, mean_bytes_)},
                    {DNNL_ARG_SCALE, parameters.value(op_.weight).data()},
                    {DNNL_ARG_SHIFT, parameters.value(op_.bias).data()},
                    {DNNL_ARG_DST, buffers.y},
                    {DNNL_ARG_SCRATCHPAD, buffers.scratch}});
    });
  }

  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady ready) override {
    Parameters& parameters = *context_.parameters;
    LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(name_, [&] {
      backward_.Run(
          context_.stream,
          {{DNNL_ARG_SRC, buffers.x},
           {DNNL_ARG_MEAN, buffers.saved},
           {DNNL_ARG_VARIANCE, Offset(buffers.saved, mean_bytes_)},
           {DNNL_ARG_SCALE, parameters.value(op_.weight).data()},
           {DNNL_ARG_SHIFT, parameters.value(op_.bias).data()},
           {DNNL_ARG_DIFF_SCALE, parameters.gradient(op_.weight).data()},
           {DNNL_ARG_DIFF_SHIFT, parameters.gradient(op_.bias).data()},
           {DNNL_ARG_DIFF_DST, buffers.dy},
           {DNNL_ARG_DIFF_SRC, buffers.dx == nullptr ? buffers.dy : buffers.dx},
           {DNNL_ARG_SCRATCHPAD, buffers.scratch}});
    }));
    ready(op_.bias);
    ready(op_.weight);
    return absl::OkStatus();
  }

 private:
  PlanContext context_;
  const std::string name_;
  const LayerNormOp op_;
  int64_t mean_bytes_ = 0;
  Primitive forward_, backward_;
};

}  // namespace

// Batch norm uses the same kernels with or without a group, so that a rank
// alone computes the same bits as a group of one.
PlanOr PlanBatchNorm(const PlanContext& context, const PlanRequest& request) {
  const auto& op = std::get<BatchNormOp>(request.operation->kind);
  const BatchNormOptions options = {.channels = request.x.c,
                                    .epsilon = op.epsilon};
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<BatchNorm> batch_norm,
      context.batch_norm_group == nullptr
          ? SyncBatchNorm::CreateLocal(options, *context.batch_norm_kernels)
          : SyncBatchNorm::Create(options, *context.batch_norm_kernels,
                                  *context.batch_norm_group));
  return std::make_unique<BatchNormPlan>(context, request,
                                         std::move(batch_norm));
}

PlanOr PlanLayerNorm(const PlanContext& context, const PlanRequest& request) {
  const auto& op = std::get<LayerNormOp>(request.operation->kind);
  return MakePlan(context, request, {op.bias, op.weight}, [&] {
    return std::make_unique<LayerNormPlan>(context, request);
  });
}

}  // namespace lockstep
