// Parameters, running statistics and batches of any network, at which its
// gradients are not small and few derivatives are in doubt.
#ifndef LOCKSTEP_MODELS_REFERENCE_NETWORK_INPUTS_H_
#define LOCKSTEP_MODELS_REFERENCE_NETWORK_INPUTS_H_

#include <cstdint>
#include <vector>

#include "models/model.h"
#include "models/networks/network.h"

namespace lockstep {

// Flat, as CreateParameters(network) lays them out. Weights are scaled by their
// fan-in, and a shortcut's convolution is small beside what batch norm puts on
// top of it. Few ReLU inputs come near zero: each batch norm's bias is 1.5 to
// 2.5 times its weight, upwards in even channels and downwards in odd ones, so
// that a twentieth of the inputs is on the other side of zero than its channel.
// Where an input is zero but for rounding its derivative is a matter of the
// order of additions, and one such input changes a gradient by a thousand times
// what rounding does.
std::vector<float> RandomParameters(const Network& network, uint32_t seed);

// Flat, as CreateBuffers(network).floats() lays them out: running statistics
// that no batch would give, means around zero, variances in [0.5, 1.5).
std::vector<float> RandomRunning(const Network& network, uint32_t seed);

struct RandomSamples {
  std::vector<float> images;  // [n, h, w, c].
  std::vector<int32_t> labels;

  Batch batch() const { return {.images = images, .labels = labels}; }
};

// n images of random bytes divided by 255, as a Dataset gives them, with random
// labels.
RandomSamples RandomBatchOf(const Network& network, uint32_t seed, int64_t n);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_REFERENCE_NETWORK_INPUTS_H_
