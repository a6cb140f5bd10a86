// LeNet with its units, pixels and samples in another order.
#include "conformance/reordered_lenet.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "conformance/trace.h"
#include "models/model.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

constexpr int kImageSide = 28;
constexpr int kClasses = 10;

std::vector<int64_t> RandomOrder(int64_t size, std::mt19937& random) {
  std::vector<int64_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

std::vector<int64_t> Identity(int64_t size) {
  std::vector<int64_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// A square of `side` times `side`, transposed.
std::vector<int64_t> Transposed(int64_t side) {
  std::vector<int64_t> order;
  for (int64_t row = 0; row < side; ++row) {
    for (int64_t column = 0; column < side; ++column) {
      order.push_back(column * side + row);
    }
  }
  return order;
}

// Lists, tensor by tensor, where LeNet has what a shadow has in that place.
class Places {
 public:
  // The next tensor, of as many axes as there are orders; place i of an axis
  // holds what LeNet has in place order[i].
  void AddTensor(const std::vector<std::vector<int64_t>>& orders) {
    std::vector<int64_t> tensor = {0};
    for (const std::vector<int64_t>& axis : orders) {
      std::vector<int64_t> longer;
      for (const int64_t place : tensor) {
        for (const int64_t along : axis) {
          longer.push_back(place * static_cast<int64_t>(axis.size()) + along);
        }
      }
      tensor = longer;
    }
    const int64_t begin = static_cast<int64_t>(places_.size());
    for (const int64_t place : tensor) places_.push_back(begin + place);
  }

  std::vector<int64_t> Take() { return std::move(places_); }

 private:
  std::vector<int64_t> places_;
};

std::vector<int64_t> LeNetPlaces(std::mt19937& random) {
  const std::vector<int64_t> first = RandomOrder(20, random);
  const std::vector<int64_t> second = RandomOrder(50, random);
  const std::vector<int64_t> hidden = RandomOrder(128, random);
  Places places;
  places.AddTensor({first, Transposed(3)});           // W1 [20,1,3,3]
  places.AddTensor({first});                          // b1
  places.AddTensor({second, first, Transposed(5)});   // W2 [50,20,5,5]
  places.AddTensor({second});                         // b2
  places.AddTensor({second, Transposed(4), hidden});  // W3 [50*4*4,128]
  places.AddTensor({hidden});                         // b3
  places.AddTensor({hidden, Identity(kClasses)});     // W4 [128,10]
  places.AddTensor({Identity(kClasses)});             // b4
  return places.Take();
}

}  // namespace

LeNetShadow::LeNetShadow(uint32_t seed)
    : random_(seed),
      model_(CreateLeNet(/*seed=*/0)),
      places_(LeNetPlaces(random_)) {}

absl::StatusOr<std::vector<float>> LeNetShadow::Gradient(
    std::span<const float> parameters, const Samples& samples) {
  const std::span<float> values = model_->parameters().values();
  for (size_t i = 0; i < values.size(); ++i) values[i] = parameters[places_[i]];
  const std::vector<int64_t> pixels = Transposed(kImageSide);
  std::vector<float> images;
  std::vector<int32_t> labels;
  for (const int64_t sample : RandomOrder(samples.size(), random_)) {
    labels.push_back(samples.labels[sample]);
    const float* image = &samples.images[sample * pixels.size()];
    for (const int64_t pixel : pixels) images.push_back(image[pixel]);
  }
  LOCKSTEP_RETURN_IF_ERROR(
      model_
          ->ForwardBackward({images, labels},
                            1.0f / static_cast<float>(samples.size()),
                            [](int) {})
          .status());
  const std::span<const float> own = model_->parameters().gradients();
  std::vector<float> gradient(own.size());
  for (size_t i = 0; i < own.size(); ++i) gradient[places_[i]] = own[i];
  return gradient;
}

}  // namespace lockstep
