#include "models/cpu/layers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/cpu/onednn.h"
#include "models/model.h"

namespace lockstep {
namespace {

class EmptyPlan : public LayerPlan {
 public:
  EmptyPlan(Parameters& parameters, std::vector<int> indices,
            const Shape& output)
      : LayerPlan(output),
        parameters_(parameters),
        indices_(std::move(indices)) {}

  absl::Status Forward(const Forwards&) override { return absl::OkStatus(); }

  absl::Status Backward(const Backwards&, Model::GradientReady ready) override {
    for (const int index : indices_) {
      std::ranges::fill(parameters_.gradient(index), 0.0f);
    }
    for (const int index : indices_) ready(index);
    return absl::OkStatus();
  }

 private:
  Parameters& parameters_;
  const std::vector<int> indices_;
};

// what: "parameter", "buffer".
absl::Status CheckTensor(const std::string& layer, const char* what,
                         const std::vector<TensorSpec>& specs, int index,
                         const std::vector<int64_t>& want) {
  if (index < 0 || static_cast<size_t>(index) >= specs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        layer, ": no ", what, " ", index, " among ", specs.size()));
  }
  if (specs[index].shape == want) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      layer, ": ", what, " ", specs[index].name, " is [",
      absl::StrJoin(specs[index].shape, ","),
      "], the layer and its input need [", absl::StrJoin(want, ","), "]"));
}

// Saved space: for each layer what it saves itself and, but for the last, its
// output. Temporary space: the gradients of two neighbouring inner outputs, and
// what one layer needs.
class SequentialPlan : public LayerPlan {
 public:
  explicit SequentialPlan(std::vector<std::unique_ptr<LayerPlan>> plans)
      : LayerPlan(plans.back()->output), plans_(std::move(plans)) {
    int64_t child_temporary = 0;
    for (size_t i = 0; i < plans_.size(); ++i) {
      const LayerPlan& plan = *plans_[i];
      own_saved_.push_back(saved_size);
      saved_size += AlignedSize(plan.saved_size);
      inner_output_.push_back(saved_size);
      child_temporary = std::max(child_temporary, plan.temporary_size);
      if (i + 1 == plans_.size()) break;
      const int64_t size = AlignedSize(plan.output.size());
      saved_size += size;
      gradient_size_ = std::max(gradient_size_, size);
    }
    temporary_size = 2 * gradient_size_ + AlignedSize(child_temporary);
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
  int64_t gradient_size_ = 0;
};

}  // namespace

std::unique_ptr<LayerPlan> CreateEmptyPlan(Parameters& parameters,
                                           std::vector<int> indices,
                                           const Shape& output) {
  return std::make_unique<EmptyPlan>(parameters, std::move(indices), output);
}

absl::Status CheckParameter(const std::string& layer,
                            const Parameters& parameters, int index,
                            const std::vector<int64_t>& want) {
  return CheckTensor(layer, "parameter", parameters.specs(), index, want);
}

absl::Status CheckBuffer(const std::string& layer, const Buffers& buffers,
                         int index, const std::vector<int64_t>& want) {
  return CheckTensor(layer, "buffer", buffers.specs(), index, want);
}

Layer CreateSequential(std::string name, std::vector<Layer> layers) {
  int batch_norm_count = 0;
  for (const Layer& layer : layers) batch_norm_count += layer.batch_norm_count;
  return {
      [name = std::move(name), layers = std::move(layers)](
          const LayerContext& context, const Shape& input,
          bool input_gradient) -> absl::StatusOr<std::unique_ptr<LayerPlan>> {
        if (layers.empty()) {
          return absl::InvalidArgumentError(absl::StrCat(name, ": no layers"));
        }
        std::vector<std::unique_ptr<LayerPlan>> plans;
        for (const Layer& layer : layers) {
          LOCKSTEP_ASSIGN_OR_RETURN(
              std::unique_ptr<LayerPlan> plan,
              layer.plan(context, plans.empty() ? input : plans.back()->output,
                         input_gradient || !plans.empty()));
          plans.push_back(std::move(plan));
        }
        return std::make_unique<SequentialPlan>(std::move(plans));
      },
      batch_norm_count};
}

}  // namespace lockstep
