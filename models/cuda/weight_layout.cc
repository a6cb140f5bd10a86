#include "models/cuda/weight_layout.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "models/model.h"
#include "models/networks/network.h"

namespace lockstep {
namespace {

// Calls visit(host index, GPU index) for each element.
template <typename Visit>
void ForEachElement(const WeightLayout& layout, const Visit& visit) {
  const auto& [out, channels, positions, inputs_first] = layout;
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t p = 0; p < positions; ++p) {
        const int64_t host = inputs_first ? (c * positions + p) * out + o
                                          : (o * channels + c) * positions + p;
        visit(static_cast<size_t>(host),
              static_cast<size_t>((o * positions + p) * channels + c));
      }
    }
  }
}

}  // namespace

std::vector<WeightLayout> WeightLayoutsOf(const Network& network) {
  std::vector<WeightLayout> layouts;
  for (const TensorDescription& parameter : network.parameters()) {
    layouts.push_back({.out = parameter.size()});
  }
  for (const Network::Operation& operation : network.operations()) {
    const Shape& x = network.ShapeOf(operation.inputs[0]);
    if (const auto* op = std::get_if<ConvolutionOp>(&operation.kind)) {
      layouts[op->weight] = {.out = operation.output.c,
                             .channels = x.c,
                             .positions = op->kernel * op->kernel};
    } else if (const auto* op = std::get_if<LinearOp>(&operation.kind)) {
      layouts[op->weight] = {.out = operation.output.c,
                             .channels = x.c,
                             .positions = op->per_position ? 1 : x.h * x.w,
                             .inputs_first = op->inputs_first};
    }
  }
  return layouts;
}

void ToGpuOrder(const WeightLayout& layout, std::span<const float> host,
                std::span<float> gpu) {
  ForEachElement(layout, [&](size_t from, size_t to) { gpu[to] = host[from]; });
}

void ToHostOrder(const WeightLayout& layout, std::span<const float> gpu,
                 std::span<float> host) {
  ForEachElement(layout, [&](size_t to, size_t from) { host[to] = gpu[from]; });
}

}  // namespace lockstep
