// The order of weights in a GPU's memory.
#ifndef LOCKSTEP_MODELS_CUDA_WEIGHT_LAYOUT_H_
#define LOCKSTEP_MODELS_CUDA_WEIGHT_LAYOUT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "models/networks/network.h"

namespace lockstep {

// A parameter's order on the GPU, where activations are channels last. Weights
// of convolutions are [out, position in the kernel, channel] there, and weights
// of linear layers [out, pixel, channel]. With one position, other parameters
// have the same order in both memories.
struct WeightLayout {
  int64_t out = 1;
  int64_t channels = 1;
  int64_t positions = 1;
  // Whether the host has [channel, position, out] in place of [out, channel,
  // position].
  bool inputs_first = false;
};

// Returns the layout of every parameter of the network, by index.
std::vector<WeightLayout> WeightLayoutsOf(const Network& network);

// Copy a parameter from the host's order to the GPU's and back. Both spans are
// host memory of the parameter's size.
void ToGpuOrder(const WeightLayout& layout, std::span<const float> host,
                std::span<float> gpu);
void ToHostOrder(const WeightLayout& layout, std::span<const float> gpu,
                 std::span<float> host);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_WEIGHT_LAYOUT_H_
