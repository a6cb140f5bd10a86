// Batch norm, bound to a layer's parameters and buffers, and the residual block
// that adds its shortcut in it.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "models/cpu/layers.h"
#include "models/cpu/onednn.h"
#include "models/model.h"
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

// `status` with the layer's name, which those of BatchNorm lack.
absl::Status Named(const std::string& layer, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(layer, ": ", status.message()));
}

// A batch norm layer's plan. `saved` holds the batch's statistics. In training
// on a group every rank runs Forward and Backward at the same time; messages
// wait for each other, planning sends none. Errors, beside LayerPlan's:
// kInvalidArgument for a batch of one value per channel, over all ranks, in
// training.
class BatchNormPlan : public LayerPlan {
 public:
  BatchNormPlan(const LayerContext& context, BatchNormLayerOptions options,
                const Shape& shape, std::unique_ptr<BatchNorm> batch_norm)
      : LayerPlan(shape),
        context_(context),
        options_(std::move(options)),
        batch_norm_(std::move(batch_norm)) {
    const int64_t bytes = batch_norm_->SavedBytes(kFloat);
    saved_size = (bytes + sizeof(float) - 1) / sizeof(float);
  }

  absl::Status Forward(const Forwards& buffers) override {
    return ForwardAdding(buffers, /*residual=*/nullptr);
  }
  absl::Status Backward(const Backwards& buffers,
                        Model::GradientReady ready) override {
    return BackwardAdding(buffers, /*dresidual=*/nullptr, ready);
  }

  // Forward with `residual`, [output], added before ReLU; it may be the
  // memory of y. Null: none.
  absl::Status ForwardAdding(const Forwards& buffers, const float* residual) {
    const int64_t size = output.size();
    const Parameters& parameters = *context_.parameters;
    Buffers& statistics = *context_.buffers;
    return Named(
        options_.name,
        batch_norm_->Forward(
            {.shape = ActivationsOf(output),
             .training = buffers.training,
             .relu = true,
             .x = ConstBuffer(buffers.x, size, kFloat),
             .residual =
                 ConstBuffer(residual, residual == nullptr ? 0 : size, kFloat),
             .weight = parameters.value(options_.weight),
             .bias = parameters.value(options_.bias),
             .running = {.mean = statistics.value(options_.running_mean),
                         .variance =
                             statistics.value(options_.running_variance),
                         .batches = &statistics.counter(options_.batches)},
             .y = Buffer(buffers.y, size, kFloat),
             .saved = Buffer(buffers.saved, batch_norm_->SavedBytes(kFloat),
                             DataType::kUInt8)}));
  }

  // Backward that also overwrites `dresidual`, [output], with the residual's
  // gradient; dx or dresidual may be the memory of dy. Null: not wanted.
  absl::Status BackwardAdding(const Backwards& buffers, float* dresidual,
                              Model::GradientReady ready) {
    const int64_t size = output.size();
    Parameters& parameters = *context_.parameters;
    // dx is always computed: where nobody wants it, in place of dy.
    float* dx = buffers.dx == nullptr ? buffers.dy : buffers.dx;
    return Named(options_.name,
                 batch_norm_->Backward(
                     {.shape = ActivationsOf(output),
                      .training = true,
                      .relu = true,
                      .x = ConstBuffer(buffers.x, size, kFloat),
                      .y = ConstBuffer(buffers.y, size, kFloat),
                      .dy = ConstBuffer(buffers.dy, size, kFloat),
                      .weight = ConstBuffer(parameters.value(options_.weight)),
                      .saved = ConstBuffer(buffers.saved,
                                           batch_norm_->SavedBytes(kFloat),
                                           DataType::kUInt8),
                      .dweight = parameters.gradient(options_.weight),
                      .dbias = parameters.gradient(options_.bias),
                      .dx = Buffer(dx, size, kFloat),
                      .dresidual = Buffer(
                          dresidual, dresidual == nullptr ? 0 : size, kFloat)},
                     [&] {
                       ready(options_.bias);
                       ready(options_.weight);
                     }));
  }

 private:
  LayerContext context_;
  BatchNormLayerOptions options_;
  std::unique_ptr<BatchNorm> batch_norm_;
};

// As Layer::plan. With or without context.batch_norm_group it computes with
// context.batch_norm_kernels, so that a rank alone has the bits of a group of
// one.
absl::StatusOr<std::unique_ptr<BatchNormPlan>> PlanBatchNorm(
    const BatchNormLayerOptions& options, const LayerContext& context,
    const Shape& input) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTensors(options, context, input.c));
  if (context.calls != nullptr) context.calls->batch_norms.push_back(input);
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

struct Plans {
  std::unique_ptr<LayerPlan> conv1, conv2;
  std::unique_ptr<LayerPlan> conv3;  // Null: identity.
  std::unique_ptr<BatchNormPlan> bn1, bn2;
};

// Saved space: the outputs of conv1, bn1 and conv2, and what the layers save;
// conv3's output is not kept, for bn2 adds to it in y. Temporary space: two
// gradients, and what one layer needs.
class ResidualPlan : public LayerPlan {
 public:
  // accumulation: of size input.size(), if not empty.
  ResidualPlan(const LayerContext& context, Plans plans, const Shape& input,
               Reorder accumulation)
      : LayerPlan(plans.bn2->output),
        context_(context),
        plans_(std::move(plans)),
        input_size_(input.size()),
        accumulation_(std::move(accumulation)) {
    const int64_t inner = plans_.conv1->output.size();
    const int64_t outer = plans_.bn2->output.size();
    conv1_y_ = Save(inner);
    bn1_y_ = Save(inner);
    conv2_y_ = Save(outer);
    conv1_saved_ = Own(*plans_.conv1);
    conv2_saved_ = Own(*plans_.conv2);
    if (plans_.conv3 != nullptr) conv3_saved_ = Own(*plans_.conv3);
    bn1_saved_ = Own(*plans_.bn1);
    bn2_saved_ = Own(*plans_.bn2);
    gradient_size_ = AlignedSize(std::max({inner, outer, input_size_}));
    temporary_size = 2 * gradient_size_ + AlignedSize(child_temporary_);
  }

  absl::Status Forward(const Forwards& buffers) override {
    float* const conv1_y = buffers.saved + conv1_y_;
    float* const bn1_y = buffers.saved + bn1_y_;
    float* const conv2_y = buffers.saved + conv2_y_;
    const auto call = [&](int64_t saved, const float* x, float* y) {
      return Forwards{.x = x,
                      .y = y,
                      .saved = buffers.saved + saved,
                      .temporary = buffers.temporary + 2 * gradient_size_,
                      .training = buffers.training};
    };
    LOCKSTEP_RETURN_IF_ERROR(
        plans_.conv1->Forward(call(conv1_saved_, buffers.x, conv1_y)));
    LOCKSTEP_RETURN_IF_ERROR(
        plans_.bn1->Forward(call(bn1_saved_, conv1_y, bn1_y)));
    LOCKSTEP_RETURN_IF_ERROR(
        plans_.conv2->Forward(call(conv2_saved_, bn1_y, conv2_y)));
    const float* shortcut = buffers.x;
    if (plans_.conv3 != nullptr) {
      LOCKSTEP_RETURN_IF_ERROR(
          plans_.conv3->Forward(call(conv3_saved_, buffers.x, buffers.y)));
      shortcut = buffers.y;
    }
    return plans_.bn2->ForwardAdding(call(bn2_saved_, conv2_y, buffers.y),
                                     shortcut);
  }

  absl::Status Backward(const Backwards& buffers,
                        Model::GradientReady ready) override {
    float* const conv1_y = buffers.saved + conv1_y_;
    float* const bn1_y = buffers.saved + bn1_y_;
    float* const conv2_y = buffers.saved + conv2_y_;
    float* const first = buffers.temporary;
    float* const second = buffers.temporary + gradient_size_;
    const bool identity = plans_.conv3 == nullptr;
    // From here on dy is the gradient of the shortcut's output.
    LOCKSTEP_RETURN_IF_ERROR(plans_.bn2->BackwardAdding(
        Call(buffers, bn2_saved_, conv2_y, buffers.y, buffers.dy, first),
        identity && buffers.dx == nullptr ? nullptr : buffers.dy, ready));
    if (!identity) {
      // Without ReLU it does not need its output.
      LOCKSTEP_RETURN_IF_ERROR(
          plans_.conv3->Backward(Call(buffers, conv3_saved_, buffers.x, nullptr,
                                      buffers.dy, buffers.dx),
                                 ready));
    }
    LOCKSTEP_RETURN_IF_ERROR(plans_.conv2->Backward(
        Call(buffers, conv2_saved_, bn1_y, conv2_y, first, second), ready));
    LOCKSTEP_RETURN_IF_ERROR(plans_.bn1->Backward(
        Call(buffers, bn1_saved_, conv1_y, bn1_y, second, second), ready));
    // Of the two gradients of x the one in dx takes up the other.
    const bool direct = identity || buffers.dx == nullptr;
    LOCKSTEP_RETURN_IF_ERROR(
        plans_.conv1->Backward(Call(buffers, conv1_saved_, buffers.x, conv1_y,
                                    second, direct ? buffers.dx : first),
                               ready));
    return Accumulate(identity ? buffers.dy : first, buffers.dx);
  }

 private:
  // A layer's call within the block's.
  Backwards Call(const Backwards& block, int64_t saved, const float* x,
                 const float* y, float* dy, float* dx) const {
    return {.x = x,
            .y = y,
            .saved = block.saved + saved,
            .dy = dy,
            .dx = dx,
            .temporary = block.temporary + 2 * gradient_size_};
  }

  // dx += other, where dx is wanted.
  absl::Status Accumulate(const float* other, float* dx) {
    if (dx == nullptr || input_size_ == 0) return absl::OkStatus();
    return CatchOnednn("the sum of gradients",
                       [&] { accumulation_.Run(context_.stream, other, dx); });
  }

  // Reserves saved space and returns where it starts.
  int64_t Save(int64_t size) {
    const int64_t offset = saved_size;
    saved_size += AlignedSize(size);
    return offset;
  }
  int64_t Own(const LayerPlan& plan) {
    child_temporary_ = std::max(child_temporary_, plan.temporary_size);
    return Save(plan.saved_size);
  }

  LayerContext context_;
  Plans plans_;
  int64_t input_size_;
  Reorder accumulation_;
  int64_t gradient_size_ = 0;
  int64_t child_temporary_ = 0;
  // Offsets into the saved space.
  int64_t conv1_y_ = 0, bn1_y_ = 0, conv2_y_ = 0;
  int64_t conv1_saved_ = 0, conv2_saved_ = 0, conv3_saved_ = 0;
  int64_t bn1_saved_ = 0, bn2_saved_ = 0;
};

// A residual block's parts, its convolutions as layers.
struct Block {
  std::string name;
  Layer conv1, conv2;
  std::optional<Layer> conv3;  // None: identity.
  BatchNormLayerOptions bn1, bn2;
};

absl::Status CheckShortcut(const std::string& name, const Shape& shortcut,
                           const Shape& branch) {
  if (shortcut == branch) return absl::OkStatus();
  const auto text = [](const Shape& shape) {
    return absl::StrCat(shape.c, "x", shape.h, "x", shape.w);
  };
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": the shortcut gives ", text(shortcut),
                   ", the convolutions ", text(branch)));
}

absl::StatusOr<std::unique_ptr<LayerPlan>> PlanResidual(
    const Block& block, const LayerContext& context, const Shape& input,
    bool input_gradient) {
  Plans plans;
  LOCKSTEP_ASSIGN_OR_RETURN(plans.conv1,
                            block.conv1.plan(context, input, input_gradient));
  LOCKSTEP_ASSIGN_OR_RETURN(
      plans.bn1, PlanBatchNorm(block.bn1, context, plans.conv1->output));
  LOCKSTEP_ASSIGN_OR_RETURN(plans.conv2,
                            block.conv2.plan(context, plans.conv1->output,
                                             /*input_gradient=*/true));
  LOCKSTEP_ASSIGN_OR_RETURN(
      plans.bn2, PlanBatchNorm(block.bn2, context, plans.conv2->output));
  if (block.conv3.has_value()) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        plans.conv3, block.conv3->plan(context, input, input_gradient));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckShortcut(
      block.name, plans.conv3 == nullptr ? input : plans.conv3->output,
      plans.conv2->output));
  Reorder accumulation;
  if (input_gradient && input.n > 0) {
    LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(block.name, [&] {
      accumulation = Reorder::Sum(context.engine, input.size());
    }));
  }
  return std::make_unique<ResidualPlan>(context, std::move(plans), input,
                                        std::move(accumulation));
}

}  // namespace

Layer CreateBatchNormLayer(BatchNormLayerOptions options) {
  return {[options = std::move(options)](const LayerContext& context,
                                         const Shape& input,
                                         bool /*input_gradient*/) {
            return PlanBatchNorm(options, context, input);
          },
          /*batch_norm_count=*/1};
}

Layer CreateResidual(ResidualOptions options) {
  options.conv1.relu = options.conv2.relu = false;
  Block block{.name = std::move(options.name),
              .conv1 = CreateConvolution(std::move(options.conv1)),
              .conv2 = CreateConvolution(std::move(options.conv2)),
              .conv3 = {},
              .bn1 = std::move(options.bn1),
              .bn2 = std::move(options.bn2)};
  if (options.conv3.has_value()) {
    options.conv3->relu = false;
    block.conv3 = CreateConvolution(*std::move(options.conv3));
  }
  return {std::bind_front(PlanResidual, std::move(block)),
          /*batch_norm_count=*/2};
}

}  // namespace lockstep
