// Layers made of layers. Each lays out the inner activations and gradients in
// the memory that a call brings.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/cpu/batch_norm_plan.h"
#include "models/cpu/layer.h"
#include "models/cpu/layers.h"
#include "models/cpu/onednn.h"
#include "models/model.h"

namespace lockstep {
namespace {

// Saved space: for each layer what it saves itself and, but for the last, its
// output. Temporary space: the gradients of two neighbouring inner outputs, and
// what one layer needs.
class SequentialPlan : public LayerPlan {
 public:
  explicit SequentialPlan(std::vector<std::unique_ptr<LayerPlan>> plans)
      : plans_(std::move(plans)) {
    for (size_t i = 0; i < plans_.size(); ++i) {
      const LayerPlan& plan = *plans_[i];
      own_saved_.push_back(saved_size_);
      saved_size_ += AlignedSize(plan.saved_size());
      inner_output_.push_back(saved_size_);
      child_temporary_ = std::max(child_temporary_, plan.temporary_size());
      if (i + 1 == plans_.size()) break;
      const int64_t size = AlignedSize(plan.output().size());
      saved_size_ += size;
      gradient_size_ = std::max(gradient_size_, size);
    }
  }

  const Shape& output() const override { return plans_.back()->output(); }
  int64_t saved_size() const override { return saved_size_; }
  int64_t temporary_size() const override {
    return 2 * gradient_size_ + AlignedSize(child_temporary_);
  }

  absl::Status Forward(const Forwards& buffers) override {
    const float* x = buffers.x;
    for (size_t i = 0; i < plans_.size(); ++i) {
      float* y =
          i + 1 == plans_.size() ? buffers.y : buffers.saved + inner_output_[i];
      LOCKSTEP_RETURN_IF_ERROR(plans_[i]->Forward(
          {.x = x,
           .y = y,
           .saved = buffers.saved + own_saved_[i],
           .temporary = buffers.temporary + 2 * gradient_size_,
           .training = buffers.training}));
      x = y;
    }
    return absl::OkStatus();
  }

  absl::Status Backward(const Backwards& buffers,
                        Model::GradientReady ready) override {
    const float* y = buffers.y;
    float* dy = buffers.dy;
    for (size_t i = plans_.size(); i-- > 0;) {
      const bool first = i == 0;
      const float* x = first ? buffers.x : buffers.saved + inner_output_[i - 1];
      // Neighbours take turns with the two gradient buffers.
      float* dx =
          first ? buffers.dx : buffers.temporary + i % 2 * gradient_size_;
      LOCKSTEP_RETURN_IF_ERROR(plans_[i]->Backward(
          {.x = x,
           .y = y,
           .saved = buffers.saved + own_saved_[i],
           .dy = dy,
           .dx = dx,
           .temporary = buffers.temporary + 2 * gradient_size_},
          ready));
      y = x;
      dy = dx;
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<LayerPlan>> plans_;
  std::vector<int64_t> own_saved_;     // Offsets into the saved space.
  std::vector<int64_t> inner_output_;  // Likewise.
  int64_t saved_size_ = 0;
  int64_t gradient_size_ = 0;
  int64_t child_temporary_ = 0;
};

class Sequential : public Layer {
 public:
  Sequential(std::string name, std::vector<std::unique_ptr<Layer>> layers)
      : name_(std::move(name)), layers_(std::move(layers)) {}

  int batch_norm_count() const override {
    int count = 0;
    for (const auto& layer : layers_) count += layer->batch_norm_count();
    return count;
  }

  absl::StatusOr<std::unique_ptr<LayerPlan>> Plan(
      const LayerContext& context, const Shape& input,
      bool input_gradient) const override {
    if (layers_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(name_, ": no layers"));
    }
    std::vector<std::unique_ptr<LayerPlan>> plans;
    Shape shape = input;
    for (const auto& layer : layers_) {
      LOCKSTEP_ASSIGN_OR_RETURN(
          std::unique_ptr<LayerPlan> plan,
          layer->Plan(context, shape, input_gradient || !plans.empty()));
      shape = plan->output();
      plans.push_back(std::move(plan));
    }
    return std::make_unique<SequentialPlan>(std::move(plans));
  }

 private:
  std::string name_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

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
               Accumulation accumulation)
      : context_(context),
        plans_(std::move(plans)),
        input_size_(input.size()),
        accumulation_(std::move(accumulation)) {
    const int64_t inner = plans_.conv1->output().size();
    const int64_t outer = plans_.bn2->output().size();
    conv1_y_ = Save(inner);
    bn1_y_ = Save(inner);
    conv2_y_ = Save(outer);
    conv1_saved_ = Own(*plans_.conv1);
    conv2_saved_ = Own(*plans_.conv2);
    if (plans_.conv3 != nullptr) conv3_saved_ = Own(*plans_.conv3);
    bn1_saved_ = Own(*plans_.bn1);
    bn2_saved_ = Own(*plans_.bn2);
    gradient_size_ = AlignedSize(std::max({inner, outer, input_size_}));
  }

  const Shape& output() const override { return plans_.bn2->output(); }
  int64_t saved_size() const override { return saved_size_; }
  int64_t temporary_size() const override {
    return 2 * gradient_size_ + AlignedSize(child_temporary_);
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
    const int64_t offset = saved_size_;
    saved_size_ += AlignedSize(size);
    return offset;
  }
  int64_t Own(const LayerPlan& plan) {
    child_temporary_ = std::max(child_temporary_, plan.temporary_size());
    return Save(plan.saved_size());
  }

  LayerContext context_;
  Plans plans_;
  int64_t input_size_;
  Accumulation accumulation_;
  int64_t saved_size_ = 0;
  int64_t gradient_size_ = 0;
  int64_t child_temporary_ = 0;
  // Offsets into the saved space.
  int64_t conv1_y_ = 0, bn1_y_ = 0, conv2_y_ = 0;
  int64_t conv1_saved_ = 0, conv2_saved_ = 0, conv3_saved_ = 0;
  int64_t bn1_saved_ = 0, bn2_saved_ = 0;
};

class Residual : public Layer {
 public:
  explicit Residual(ResidualOptions options)
      : name_(std::move(options.name)),
        conv1_(CreateConvolution(WithoutRelu(std::move(options.conv1)))),
        conv2_(CreateConvolution(WithoutRelu(std::move(options.conv2)))),
        bn1_(std::move(options.bn1)),
        bn2_(std::move(options.bn2)) {
    if (options.conv3.has_value()) {
      conv3_ = CreateConvolution(WithoutRelu(*std::move(options.conv3)));
    }
    bn1_.relu = true;
    bn2_.relu = true;
  }

  int batch_norm_count() const override { return 2; }

  absl::StatusOr<std::unique_ptr<LayerPlan>> Plan(
      const LayerContext& context, const Shape& input,
      bool input_gradient) const override {
    Plans plans;
    LOCKSTEP_ASSIGN_OR_RETURN(plans.conv1,
                              conv1_->Plan(context, input, input_gradient));
    LOCKSTEP_ASSIGN_OR_RETURN(
        plans.bn1, PlanBatchNorm(bn1_, context, plans.conv1->output()));
    LOCKSTEP_ASSIGN_OR_RETURN(plans.conv2,
                              conv2_->Plan(context, plans.conv1->output(),
                                           /*input_gradient=*/true));
    LOCKSTEP_ASSIGN_OR_RETURN(
        plans.bn2, PlanBatchNorm(bn2_, context, plans.conv2->output()));
    if (conv3_ != nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(plans.conv3,
                                conv3_->Plan(context, input, input_gradient));
    }
    LOCKSTEP_RETURN_IF_ERROR(
        CheckShortcut(conv3_ == nullptr ? input : plans.conv3->output(),
                      plans.conv2->output()));
    Accumulation accumulation;
    if (input_gradient && input.n > 0) {
      LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(name_, [&] {
        accumulation = Accumulation(context.engine, input.size());
      }));
    }
    return std::make_unique<ResidualPlan>(context, std::move(plans), input,
                                          std::move(accumulation));
  }

 private:
  static ConvolutionOptions WithoutRelu(ConvolutionOptions options) {
    options.relu = false;
    return options;
  }

  absl::Status CheckShortcut(const Shape& shortcut, const Shape& branch) const {
    if (shortcut == branch) return absl::OkStatus();
    const auto text = [](const Shape& shape) {
      return absl::StrCat(shape.c, "x", shape.h, "x", shape.w);
    };
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ": the shortcut gives ", text(shortcut),
                     ", the convolutions ", text(branch)));
  }

  std::string name_;
  std::unique_ptr<Layer> conv1_, conv2_;
  std::unique_ptr<Layer> conv3_;  // Null: identity.
  BatchNormLayerOptions bn1_, bn2_;
};

}  // namespace

std::unique_ptr<Layer> CreateSequential(
    std::string name, std::vector<std::unique_ptr<Layer>> layers) {
  return std::make_unique<Sequential>(std::move(name), std::move(layers));
}

std::unique_ptr<Layer> CreateResidual(ResidualOptions options) {
  return std::make_unique<Residual>(std::move(options));
}

}  // namespace lockstep
