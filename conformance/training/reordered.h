// Reference runs: a network with the same sums in another order, which shows
// the effect of rounding alone.
#ifndef LOCKSTEP_CONFORMANCE_TRAINING_REORDERED_H_
#define LOCKSTEP_CONFORMANCE_TRAINING_REORDERED_H_

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/training/trace.h"
#include "models/model.h"

namespace lockstep::conformance {

// A permutation: position i receives the value of position order[i].
using IndexOrder = std::vector<int64_t>;

IndexOrder IdentityOf(int64_t size);

// Draws the permutations of a network's channels, pixels and samples. Seed 0
// changes nothing.
class Reordering {
 public:
  explicit Reordering(uint32_t seed) : seed_(seed), random_(seed) {}

  // Returns a different permutation in each call.
  IndexOrder Shuffled(int64_t size);
  // Returns the transposition of a square of `side` times `side`.
  IndexOrder Square(int64_t side) const;
  // Returns the samples shuffled, with their square images transposed.
  Samples Batch(const Samples& samples);

 private:
  const uint32_t seed_;
  std::mt19937 random_;
};

// Appends the permutation of a tensor to `places`. The tensor has one axis for
// each permutation in `axes`: position i of an axis receives the value of
// position axes[..][i].
void AppendTensor(const std::vector<IndexOrder>& axes, IndexOrder& places);

// Take sets to[i] = from[places[i]]; PutBack does the reverse.
void Take(const IndexOrder& places, std::span<const float> from,
          std::span<float> to);
std::vector<float> PutBack(const IndexOrder& places,
                           std::span<const float> from);

// LeNet with permuted channels and hidden units, transposed images and kernels,
// and samples that are shuffled anew in each call. Mathematically it is the
// same function of the same parameters. In float32, every sum of the forward
// and backward pass adds its terms in another order. Not thread safe.
class ReorderedLeNet {
 public:
  // Each seed gives another order. seed: not 0.
  explicit ReorderedLeNet(uint32_t seed);

  // Returns the gradient of the mean loss of `samples` (at least one) at
  // `parameters`, both in LeNet's own order. Errors: the model's.
  absl::StatusOr<std::vector<float>> Gradient(std::span<const float> parameters,
                                              const Samples& samples);

 private:
  Reordering reordering_;
  std::unique_ptr<Model> model_;
  IndexOrder places_;  // For each own parameter, its position in LeNet.
};

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_TRAINING_REORDERED_H_
