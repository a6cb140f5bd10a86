// Parameters, running statistics and batches for any network. Gradients at
// these inputs are not small, and few derivatives of ReLU are uncertain.
#ifndef LOCKSTEP_MODELS_REFERENCE_NETWORK_INPUTS_H_
#define LOCKSTEP_MODELS_REFERENCE_NETWORK_INPUTS_H_

#include <cstdint>
#include <vector>

#include "models/model.h"
#include "models/networks/network.h"

namespace lockstep {

// Returns flat parameters in the layout of CreateParameters(network). Weights
// are scaled by their fan-in. The convolution of a shortcut is small compared
// with the batch norm's result that it is added to.
//
// Few ReLU inputs come near zero. Each batch norm's bias is 1.5 to 2.5 times
// its weight, positive in even channels and negative in odd ones. A twentieth
// of the inputs therefore has the opposite sign of its channel. If an input is
// zero up to rounding, its derivative depends on the order of additions. One
// such input changes a gradient a thousand times more than rounding does.
std::vector<float> RandomParameters(const Network& network, uint32_t seed);

// Returns flat running statistics in the layout of
// CreateBuffers(network).floats(). Their values are unlike any batch's: means
// around zero, variances in [0.5, 1.5).
std::vector<float> RandomRunning(const Network& network, uint32_t seed);

struct RandomSamples {
  std::vector<float> images;  // [n, h, w, c].
  std::vector<int32_t> labels;

  Batch batch() const { return {.images = images, .labels = labels}; }
};

// Returns n images of random bytes divided by 255, as a Dataset gives them,
// with random labels.
RandomSamples RandomBatchOf(const Network& network, uint32_t seed, int64_t n);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_REFERENCE_NETWORK_INPUTS_H_
