#include <cstdint>
#include <string>

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

// Number 1 or 2, with what follows it.
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

}  // namespace

Network LeNet(const NetworkInput& input, bool batch_norm) {
  Network network(
      batch_norm ? "lenet_bn" : "lenet",
      {.n = 1, .c = input.channels, .h = input.height, .w = input.width});
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

}  // namespace lockstep
