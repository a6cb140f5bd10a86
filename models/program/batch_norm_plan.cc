#include "models/program/batch_norm_plan.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"
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
  BatchNormPlan(const BatchNormContext& context, const PlanRequest& request,
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

  const BatchNormContext context_;
  const std::string name_;
  const BatchNormOp op_;
  const int64_t size_;
  const ActivationShape shape_;
  const std::unique_ptr<BatchNorm> batch_norm_;
};

}  // namespace

// Batch norm uses the same kernels with or without a group, so that a rank
// alone computes the same bits as a group of one.
PlanOr PlanBatchNorm(const BatchNormContext& context,
                     const PlanRequest& request) {
  const auto& op = std::get<BatchNormOp>(request.operation->kind);
  const BatchNormOptions options = {.channels = request.x.c,
                                    .epsilon = op.epsilon};
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<BatchNorm> batch_norm,
      context.group == nullptr
          ? SyncBatchNorm::CreateLocal(options, *context.kernels)
          : SyncBatchNorm::Create(options, *context.kernels, *context.group));
  return std::make_unique<BatchNormPlan>(context, request,
                                         std::move(batch_norm));
}

}  // namespace lockstep
