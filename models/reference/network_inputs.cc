// Uses only numbers of std::mt19937, which every standard library generates
// equally.
#include "models/reference/network_inputs.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <set>
#include <variant>
#include <vector>

#include "models/model.h"
#include "models/networks/network.h"
#include "models/reference/network_reference.h"

namespace lockstep {
namespace {

// Returns a uniform number in [0, 1).
double Uniform(std::mt19937& random) { return random() * 0x1p-32; }

// Returns a number of mean 0 and variance 1.
double Centred(std::mt19937& random) {
  return std::sqrt(12.0) * (Uniform(random) - 0.5);
}

double Up(int64_t channel) { return channel % 2 == 0 ? 1 : -1; }

// The weights with the layout [in, out], unlike PyTorch's; and the weights that
// must be small: the last layer's, and those of shortcuts' convolutions.
struct SpecialWeights {
  explicit SpecialWeights(const Network& network) {
    for (const Network::Operation& operation : network.operations()) {
      if (const auto* linear = std::get_if<LinearOp>(&operation.kind)) {
        if (linear->inputs_first) inputs_first.insert(linear->weight);
        last = linear->weight;
      }
      if (!std::holds_alternative<BatchNormOp>(operation.kind)) continue;
      if (operation.inputs.size() < 2 || operation.inputs[1] == 0) continue;
      const Network::Operation& shortcut =
          network.operations()[operation.inputs[1] - 1];
      const auto* projection = std::get_if<ConvolutionOp>(&shortcut.kind);
      if (projection != nullptr) small.insert(projection->weight);
    }
    small.insert(last);
  }

  std::set<int> inputs_first, small;
  int last = kNoTensor;
};

}  // namespace

std::vector<float> RandomParameters(const Network& network, uint32_t seed) {
  std::mt19937 random(seed);
  const SpecialWeights special(network);
  const Parameters parameters = CreateParameters(network);
  std::vector<float> out;
  std::vector<double> norm_weights;
  for (int index = 0; index < parameters.count(); ++index) {
    const ParameterSpec& spec = parameters.specs()[index];
    const bool weight = network.parameters()[index].first_value == 1;
    const bool norm = IsNorm(network, index);
    if (weight) norm_weights.clear();
    const int64_t outputs =
        spec.shape[special.inputs_first.contains(index) ? 1 : 0];
    const double scale = (special.small.contains(index) ? 0.15 : 1) *
                         std::sqrt(static_cast<double>(outputs) /
                                   static_cast<double>(spec.size));
    for (int64_t i = 0; i < spec.size; ++i) {
      double value = 0;
      if (spec.shape.size() == 3) {  // Tokens and positions.
        value = 0.5 * Centred(random);
      } else if (spec.shape.size() > 1) {
        value = scale * Centred(random);
      } else if (weight) {
        value = norm_weights.emplace_back(0.5 + Uniform(random));
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

std::vector<float> RandomRunning(const Network& network, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> out;
  for (const TensorDescription& buffer : network.buffers()) {
    if (buffer.counter) continue;
    for (int64_t i = 0; i < buffer.shape[0]; ++i) {
      out.push_back(static_cast<float>(buffer.first_value == 0
                                           ? 0.2 * Centred(random)
                                           : 0.5 + Uniform(random)));
    }
  }
  return out;
}

RandomSamples RandomBatchOf(const Network& network, uint32_t seed, int64_t n) {
  std::mt19937 random(seed);
  RandomSamples samples;
  for (int64_t i = 0; i < n * network.input_shape().size(); ++i) {
    samples.images.push_back(static_cast<float>(random() >> 24) / 255.0f);
  }
  for (int64_t i = 0; i < n; ++i) {
    samples.labels.push_back(
        static_cast<int32_t>(random() % network.classes()));
  }
  return samples;
}

}  // namespace lockstep
