// Synthetic data and weights, from std::mt19937's own numbers so that they are
// the same with every standard library.
#include "conformance/reference/lenet_fixtures.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "models/data/dataset.h"

namespace lockstep {
namespace {

constexpr int kSide = 28;

// In [0, 1).
double Uniform(std::mt19937& random) { return random() * 0x1p-32; }

struct Layer {
  int weights, fan_in, biases;
  // Of the well-conditioned weights: uniform^power of mean gain / fan_in.
  double gain, power;
  double bias;  // Their mean.
};
constexpr Layer kLayers[] = {{180, 9, 20, 1.3, 8, -0.1},
                             {25000, 500, 50, 1.3, 30, -0.02},
                             {102400, 800, 128, 1.3, 60, -0.02},
                             {1280, 128, 10, 3, 60, 0}};

}  // namespace

Dataset BlobDataset(int64_t size) {
  std::mt19937 random(7);
  Dataset data{.size = size,
               .channels = 1,
               .height = kSide,
               .width = kSide,
               .num_classes = 10,
               .images = {},
               .labels = {}};
  for (int64_t n = 0; n < size; ++n) {
    const double x0 = 4 + 20 * Uniform(random);
    const double y0 = 4 + 20 * Uniform(random);
    const double width = 2 + 5 * Uniform(random);
    for (int i = 0; i < kSide * kSide; ++i) {
      const double dx = i % kSide - x0, dy = i / kSide - y0;
      const double blob = std::exp(-(dx * dx + dy * dy) / (2 * width * width));
      const double texture = 0.5 + 0.5 * Uniform(random);
      data.images.push_back(
          static_cast<uint8_t>(blob < 0.1 ? 0 : 255 * blob * texture));
    }
    const int quarter = (x0 > 14 ? 1 : 0) + (y0 > 14 ? 2 : 0);
    const int large = width > 6 ? 2 : width > 4 ? 1 : 0;
    data.labels.push_back(static_cast<uint8_t>((4 * large + quarter) % 10));
  }
  return data;
}

std::vector<float> WellConditionedLeNet(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> out;
  for (const Layer& layer : kLayers) {
    const double scale = layer.gain * (layer.power + 1) / layer.fan_in;
    for (int i = 0; i < layer.weights; ++i) {
      const double weight = scale * std::pow(Uniform(random), layer.power);
      // Zero in place of numbers that float32 arithmetic is slow on.
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
  for (const Layer& layer : kLayers) {
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
