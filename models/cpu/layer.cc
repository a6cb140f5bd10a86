#include "models/cpu/layer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

// specs: ParameterSpec or BufferSpec. what: "parameter", "buffer".
template <typename Specs>
absl::Status CheckTensor(const std::string& layer, const char* what,
                         const Specs& specs, int index,
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

}  // namespace lockstep
