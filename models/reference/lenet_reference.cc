#include "models/reference/lenet_reference.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "models/data/dataset.h"
#include "models/networks/networks.h"
#include "models/reference/network_reference.h"

namespace lockstep {
namespace {

// The fixtures use only numbers of std::mt19937, which every standard library
// generates equally.
constexpr int kLeNetSide = 28;

// Returns a uniform number in [0, 1).
double Uniform(std::mt19937& random) { return random() * 0x1p-32; }

struct LayerWeights {
  int weights, fan_in, biases;
  // The well-conditioned weights: uniform^power with mean gain / fan_in.
  double gain, power;
  double bias;  // The mean of the biases.
};
constexpr LayerWeights kLayerWeights[] = {{180, 9, 20, 1.3, 8, -0.1},
                                          {25000, 500, 50, 1.3, 30, -0.02},
                                          {102400, 800, 128, 1.3, 60, -0.02},
                                          {1280, 128, 10, 3, 60, 0}};

}  // namespace

BoundedStep LeNetReference(std::span<const float> parameters,
                           std::span<const float> images,
                           std::span<const int32_t> labels, int world_size) {
  static const Network& lenet = *new Network(*CreateNetwork("lenet"));
  return BoundedReference(lenet, parameters,
                          {.images = images, .labels = labels}, world_size);
}

MemoryDataset BlobDataset(int64_t size) {
  std::mt19937 random(7);
  std::vector<uint8_t> images, labels;
  for (int64_t n = 0; n < size; ++n) {
    const double x0 = 4 + 20 * Uniform(random);
    const double y0 = 4 + 20 * Uniform(random);
    const double width = 2 + 5 * Uniform(random);
    for (int i = 0; i < kLeNetSide * kLeNetSide; ++i) {
      const double dx = i % kLeNetSide - x0, dy = i / kLeNetSide - y0;
      const double blob = std::exp(-(dx * dx + dy * dy) / (2 * width * width));
      const double texture = 0.5 + 0.5 * Uniform(random);
      images.push_back(
          static_cast<uint8_t>(blob < 0.1 ? 0 : 255 * blob * texture));
    }
    const int quarter = (x0 > 14 ? 1 : 0) + (y0 > 14 ? 2 : 0);
    const int large = width > 6 ? 2 : width > 4 ? 1 : 0;
    labels.push_back(static_cast<uint8_t>((4 * large + quarter) % 10));
  }
  return MemoryDataset({kLeNetSide, kLeNetSide, 1}, 10, std::move(images),
                       std::move(labels));
}

std::vector<float> WellConditionedLeNet(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> out;
  for (const LayerWeights& layer : kLayerWeights) {
    const double scale = layer.gain * (layer.power + 1) / layer.fan_in;
    for (int i = 0; i < layer.weights; ++i) {
      const double weight = scale * std::pow(Uniform(random), layer.power);
      // Tiny weights become zero, since float32 arithmetic is slow on
      // subnormals.
      out.push_back(weight < 1e-12 ? 0.0f : static_cast<float>(weight));
    }
    for (int i = 0; i < layer.biases; ++i) {
      out.push_back(static_cast<float>(2 * layer.bias * Uniform(random)));
    }
  }
  return out;
}

std::vector<float> HeLeNet(uint32_t seed) {
  std::mt19937 random(seed);
  // The sum of twelve uniform numbers is close to normal.
  const auto normal = [&random] {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += Uniform(random);
    return sum;
  };
  std::vector<float> out;
  for (const LayerWeights& layer : kLayerWeights) {
    const double scale = std::sqrt(2.0 / layer.fan_in);
    for (int i = 0; i < layer.weights; ++i) {
      out.push_back(static_cast<float>(scale * normal()));
    }
    for (int i = 0; i < layer.biases; ++i) {
      out.push_back(static_cast<float>(0.1 * normal()));
    }
  }
  return out;
}

}  // namespace lockstep
