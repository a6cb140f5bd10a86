// LeNet with the same sums in another order: what rounding alone can change.
#ifndef LOCKSTEP_CONFORMANCE_REORDERED_LENET_H_
#define LOCKSTEP_CONFORMANCE_REORDERED_LENET_H_

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/trace.h"
#include "models/model.h"

namespace lockstep {

// The LeNet of models/lenet.h with its channels and hidden units in an order of
// its own, its images and kernels transposed, and the samples of each batch in
// another order each time. Mathematically the same function of the same
// parameters; in float32 every sum of the forward and of the backward pass adds
// its terms in another order. Not thread safe.
class LeNetShadow {
 public:
  // Another seed, another order.
  explicit LeNetShadow(uint32_t seed);

  // The gradient of the mean loss of `samples` (at least one) at `parameters`,
  // both in the order of LeNet itself. Errors: the model's.
  absl::StatusOr<std::vector<float>> Gradient(std::span<const float> parameters,
                                              const Samples& samples);

 private:
  std::mt19937 random_;
  std::unique_ptr<Model> model_;
  std::vector<int64_t> places_;  // Of the shadow's parameters in LeNet's.
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REORDERED_LENET_H_
