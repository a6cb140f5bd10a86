#include "models/networks/mlp.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

// A perceptron: `depth` linear layers of `width` with ReLU, and one linear
// layer to the classes. The network equals torch.nn.Sequential(Flatten(),
// Linear(), ReLU(), ..., Linear()), with that module's names ("1.weight",
// "3.weight", ...) and its first values after manual_seed.
Network Perceptron(const NetworkInput& input, int64_t width, int64_t depth) {
  Network network("mlp", input.shape());
  Value x = network.input();
  for (int64_t i = 0; i <= depth; ++i) {
    const std::string name = absl::StrCat(2 * i + 1);
    const bool last = i == depth;
    x = network.Linear(name, x,
                       {.out = last ? input.classes : width, .relu = !last});
    network.DrawAsTorchConstructs(name);
  }
  return network;
}

}  // namespace

std::vector<NetworkEntry> Perceptrons() {
  return {{.name = "mlp",
           .options = "width=256, depth=2",
           .what = "a perceptron: linear layers with ReLU",
           .source = "torch.nn.Sequential",
           .benchmark_batch = 256,
           .describe = [](const NetworkInput& input, NetworkOptions& options) {
             const int64_t width = options.Integer("width", 256, 1, kMaxWidth);
             const int64_t depth = options.Integer("depth", 2, 1, 1000);
             return Perceptron(input, width, depth);
           }}};
}

}  // namespace lockstep
