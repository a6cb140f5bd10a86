#include "conformance/training/reordered.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "conformance/training/trace.h"
#include "models/cpu/cpu_model.h"
#include "models/model.h"

namespace lockstep::conformance {
namespace {

IndexOrder LeNetPlaces(Reordering& reordering) {
  const IndexOrder first = reordering.Shuffled(20);
  const IndexOrder second = reordering.Shuffled(50);
  const IndexOrder hidden = reordering.Shuffled(128);
  const IndexOrder classes = IdentityOf(10);
  IndexOrder places;
  AppendTensor({first, reordering.Square(3)}, places);  // W1 [20,1,3,3]
  AppendTensor({first}, places);                        // b1
  AppendTensor({second, first, reordering.Square(5)},   // W2 [50,20,5,5]
               places);
  AppendTensor({second}, places);                                // b2
  AppendTensor({second, reordering.Square(4), hidden}, places);  // W3 [800,128]
  AppendTensor({hidden}, places);                                // b3
  AppendTensor({hidden, classes}, places);                       // W4 [128,10]
  AppendTensor({classes}, places);                               // b4
  return places;
}

}  // namespace

IndexOrder IdentityOf(int64_t size) {
  IndexOrder order(size);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

IndexOrder Reordering::Shuffled(int64_t size) {
  IndexOrder order = IdentityOf(size);
  if (seed_ != 0) std::shuffle(order.begin(), order.end(), random_);
  return order;
}

IndexOrder Reordering::Square(int64_t side) const {
  IndexOrder order = IdentityOf(side * side);
  if (seed_ == 0) return order;
  for (int64_t& i : order) i = i % side * side + i / side;
  return order;
}

Samples Reordering::Batch(const Samples& samples) {
  const int64_t pixels =
      static_cast<int64_t>(samples.images.size()) / samples.size();
  const IndexOrder square =
      Square(std::lround(std::sqrt(static_cast<double>(pixels))));
  Samples out;
  for (const int64_t sample : Shuffled(samples.size())) {
    out.labels.push_back(samples.labels[sample]);
    const float* const image = &samples.images[sample * pixels];
    for (const int64_t pixel : square) out.images.push_back(image[pixel]);
  }
  return out;
}

void AppendTensor(const std::vector<IndexOrder>& axes, IndexOrder& places) {
  IndexOrder tensor = {0};
  for (const IndexOrder& axis : axes) {
    IndexOrder longer;
    for (const int64_t place : tensor) {
      for (const int64_t along : axis) {
        longer.push_back(place * static_cast<int64_t>(axis.size()) + along);
      }
    }
    tensor = std::move(longer);
  }
  const auto begin = static_cast<int64_t>(places.size());
  for (const int64_t place : tensor) places.push_back(begin + place);
}

void Take(const IndexOrder& places, std::span<const float> from,
          std::span<float> to) {
  for (size_t i = 0; i < places.size(); ++i) to[i] = from[places[i]];
}

std::vector<float> PutBack(const IndexOrder& places,
                           std::span<const float> from) {
  std::vector<float> to(from.size());
  for (size_t i = 0; i < places.size(); ++i) to[places[i]] = from[i];
  return to;
}

ReorderedLeNet::ReorderedLeNet(uint32_t seed)
    : reordering_(seed),
      model_(*CreateModel("lenet", /*seed=*/0)),
      places_(LeNetPlaces(reordering_)) {}

absl::StatusOr<std::vector<float>> ReorderedLeNet::Gradient(
    std::span<const float> parameters, const Samples& samples) {
  Take(places_, parameters, model_->parameters().values());
  const Samples batch = reordering_.Batch(samples);
  LOCKSTEP_RETURN_IF_ERROR(
      model_
          ->ForwardBackward({batch.images, batch.labels},
                            1.0f / static_cast<float>(batch.size()), [](int) {})
          .status());
  return PutBack(places_, model_->parameters().gradients());
}

}  // namespace lockstep::conformance
