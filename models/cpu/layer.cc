// Zero gradients and nothing else.
#include "models/cpu/layer.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "models/model.h"

namespace lockstep {
namespace {

class EmptyPlan : public LayerPlan {
 public:
  EmptyPlan(Parameters& parameters, std::vector<int> indices,
            const Shape& output)
      : parameters_(parameters),
        indices_(std::move(indices)),
        output_(output) {}

  const Shape& output() const override { return output_; }
  int64_t saved_size() const override { return 0; }
  int64_t temporary_size() const override { return 0; }

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
  const Shape output_;
};

}  // namespace

std::unique_ptr<LayerPlan> CreateEmptyPlan(Parameters& parameters,
                                           std::vector<int> indices,
                                           const Shape& output) {
  return std::make_unique<EmptyPlan>(parameters, std::move(indices), output);
}

}  // namespace lockstep
