#include "models/networks/lenet.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

constexpr double kWeightScale = 0.01;

void NameAndDraw(Network& network, int number) {
  const std::string weight = absl::StrCat("W", number);
  network.Rename(weight, absl::StrCat("b", number));
  network.AddDraw(weight, Draw::Kind::kNormal, kWeightScale);
}

// Adds convolution `number` (1 or 2), batch norm if asked for, ReLU and
// pooling.
Value ConvolutionAndPool(Network& network, int number, Value x, int64_t out,
                         int64_t kernel, bool batch_norm) {
  x = network.Convolution(absl::StrCat("conv", number), x,
                          {.out = out, .kernel = kernel, .relu = !batch_norm});
  NameAndDraw(network, number);
  if (batch_norm) {
    x = network.BatchNorm(absl::StrCat("bn", number), x, /*relu=*/true);
  }
  return network.Pool(absl::StrCat("pool", number), x,
                      {.kernel = 2, .stride = 2});
}

// LeNet of d2l's chapter on training on several GPUs: conv 20@3x3, ReLU,
// average pool 2x2 -> conv 50@5x5, ReLU, average pool 2x2 -> linear 128, ReLU
// -> linear classes. Parameters are W1, b1 to W4, b4 as in the chapter, with
// linear weights [in, out]. Weights are normal numbers times 0.01, the same as
// PyTorch's randn after manual_seed; biases are zero. batch_norm: bn1 and bn2
// follow the convolutions, before their ReLUs.
Network LeNet(const NetworkInput& input, bool batch_norm) {
  Network network(batch_norm ? "lenet_bn" : "lenet", input.shape());
  Value x = network.input();
  x = ConvolutionAndPool(network, 1, x, 20, 3, batch_norm);
  x = ConvolutionAndPool(network, 2, x, 50, 5, batch_norm);
  x = network.Linear("linear1", x,
                     {.out = 128, .inputs_first = true, .relu = true});
  NameAndDraw(network, 3);
  network.Linear("linear2", x, {.out = input.classes, .inputs_first = true});
  NameAndDraw(network, 4);
  return network;
}

}  // namespace

std::vector<NetworkEntry> LeNets() {
  return {{.name = "lenet",
           .what = "LeNet of the d2l chapter",
           .source = "d2l",
           .benchmark_batch = 256,
           .describe =
               [](const NetworkInput& input, NetworkOptions&) {
                 return LeNet(input, /*batch_norm=*/false);
               }},
          {.name = "lenet_bn",
           .what = "the same with batch norm",
           .source = "d2l",
           .benchmark_batch = 256,
           .describe = [](const NetworkInput& input, NetworkOptions&) {
             return LeNet(input, /*batch_norm=*/true);
           }}};
}

}  // namespace lockstep
