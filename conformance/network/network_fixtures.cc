// From std::mt19937's own numbers, the same with every standard library.
#include "conformance/network/network_fixtures.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "conformance/network/resnet_reference.h"
#include "conformance/trace.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

// In [0, 1).
double Uniform(std::mt19937& random) { return random() * 0x1p-32; }

// Of mean 0 and variance 1.
double Centred(std::mt19937& random) {
  return std::sqrt(12.0) * (Uniform(random) - 0.5);
}

double Up(int64_t channel) { return channel % 2 == 0 ? 1 : -1; }

}  // namespace

std::vector<float> NetworkParameters(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> out;
  std::vector<double> norm_weights;
  for (const ParameterSpec& spec : ResNetParameterSpecs()) {
    const bool matrix = spec.shape.size() > 1;
    const bool projection = absl::StrContains(spec.name, "conv3");
    const bool norm =
        absl::StrContains(spec.name, "bn") || absl::StartsWith(spec.name, "1.");
    const bool weight = absl::EndsWith(spec.name, "weight");
    if (norm && weight) norm_weights.clear();
    // A shortcut is small beside what batch norm puts on top of it.
    const double scale = projection || spec.name == "fc.1.weight" ? 0.15 : 1;
    for (int64_t i = 0; i < spec.size; ++i) {
      double value = 0;
      if (matrix) {
        value = scale * Centred(random) *
                std::sqrt(static_cast<double>(spec.shape[0]) /
                          static_cast<double>(spec.size));
      } else if (norm && weight) {
        value = 0.5 + Uniform(random);
        norm_weights.push_back(value);
      } else if (norm) {
        value = Up(i) * (1.5 + Uniform(random)) * norm_weights[i];
      } else {
        value = 0.1 * Centred(random);
      }
      out.push_back(static_cast<float>(value));
    }
  }
  return out;
}

std::vector<float> NetworkRunning(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> out;
  for (const ParameterSpec& spec : ResNetBufferSpecs()) {
    const bool mean = absl::EndsWith(spec.name, "mean");
    for (int64_t i = 0; i < spec.size; ++i) {
      out.push_back(static_cast<float>(mean ? 0.2 * Centred(random)
                                            : 0.5 + Uniform(random)));
    }
  }
  return out;
}

Samples NetworkBatch(uint32_t seed, int64_t n) {
  std::mt19937 random(seed);
  Samples samples;
  for (int64_t i = 0; i < n * kNetworkSide * kNetworkSide; ++i) {
    samples.images.push_back(static_cast<float>(random() >> 24) / 255.0f);
  }
  for (int64_t i = 0; i < n; ++i) {
    samples.labels.push_back(static_cast<int32_t>(random() % 10));
  }
  return samples;
}

}  // namespace lockstep
