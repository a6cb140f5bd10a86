// Reference runs: a network with the same sums in another order, which shows
// what rounding alone can change.
#ifndef LOCKSTEP_CONFORMANCE_REORDERING_H_
#define LOCKSTEP_CONFORMANCE_REORDERING_H_

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/checks.h"
#include "models/model.h"

namespace lockstep {

// Place i holds what was in place [i].
using IndexOrder = std::vector<int64_t>;

IndexOrder IdentityOf(int64_t size);

// Draws the permutations of a network's channels, pixels and samples. Seed 0
// leaves all as it is.
class Reordering {
 public:
  explicit Reordering(uint32_t seed) : seed_(seed), random_(seed) {}

  // Another one in each call.
  IndexOrder Shuffled(int64_t size);
  // A square of `side` times `side`, transposed.
  IndexOrder Square(int64_t side) const;
  // The samples shuffled, their square images transposed.
  Samples Batch(const Samples& samples);

 private:
  const uint32_t seed_;
  std::mt19937 random_;
};

// Adds the places of a tensor behind the last one, of as many axes as there are
// permutations: place i of an axis holds what was in place axes[..][i].
void AppendTensor(const std::vector<IndexOrder>& axes, IndexOrder& places);

// to[i] = from[places[i]], and back.
void Take(const IndexOrder& places, std::span<const float> from,
          std::span<float> to);
std::vector<float> PutBack(const IndexOrder& places,
                           std::span<const float> from);

// LeNet with its channels and hidden units in an order of its own, its images
// and kernels transposed, and the samples of each batch in another order each
// time. Mathematically the same function of the same parameters; in float32
// every sum of the forward and of the backward pass adds its terms in another
// order. Not thread safe.
class ReorderedLeNet {
 public:
  // Another seed, another order. seed: not 0.
  explicit ReorderedLeNet(uint32_t seed);

  // The gradient of the mean loss of `samples` (at least one) at `parameters`,
  // both in the order of LeNet itself. Errors: the model's.
  absl::StatusOr<std::vector<float>> Gradient(std::span<const float> parameters,
                                              const Samples& samples);

 private:
  Reordering reordering_;
  std::unique_ptr<Model> model_;
  IndexOrder places_;  // Of this one's parameters in LeNet's.
};

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_REORDERING_H_
