#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

constexpr double kD2lWeightScale = 0.01;
constexpr int64_t kBottleneckExpansion = 4;

Shape ShapeOf(const NetworkInput& input) {
  return {.n = 1, .c = input.channels, .h = input.height, .w = input.width};
}

void DeclareConvolution(Network& network, const std::string& name, int64_t in,
                        int64_t out, int64_t kernel) {
  network.Declare(name + ".weight", {out, in, kernel, kernel});
  network.Declare(name + ".bias", {out});
}

// The chapter's Residual, whose convolutions come before its batch norms in the
// state_dict. Its shortcut is a convolution if stride > 1.
Value D2lResidual(Network& network, const std::string& name, const Value& x,
                  int64_t out, int64_t stride) {
  DeclareConvolution(network, name + ".conv1", x.shape.c, out, 3);
  DeclareConvolution(network, name + ".conv2", out, out, 3);
  Value y = network.Convolution(
      name + ".conv1", x,
      {.out = out, .kernel = 3, .stride = stride, .padding = 1});
  if (stride > 1) {
    DeclareConvolution(network, name + ".conv3", x.shape.c, out, 1);
  }
  y = network.BatchNorm(name + ".bn1", y, /*relu=*/true);
  y = network.Convolution(name + ".conv2", y,
                          {.out = out, .kernel = 3, .padding = 1});
  const Value shortcut =
      stride > 1 ? network.Convolution(name + ".conv3", x,
                                       {.out = out, .stride = stride})
                 : x;
  return network.BatchNormAddRelu(name + ".bn2", y, shortcut);
}

// torchvision's convolution and batch norm, "<name><number>".
Value ConvolutionAndNorm(Network& network, const std::string& convolution,
                         const std::string& norm, const Value& x,
                         Network::ConvolutionOptions options, bool relu) {
  options.bias = false;
  options.padding = options.kernel / 2;
  return network.BatchNorm(norm, network.Convolution(convolution, x, options),
                           relu);
}

// One block of a torchvision ResNet: two convolutions of 3x3, or one of 1x1,
// 3x3 and 1x1.
Value Block(Network& network, const std::string& name, const Value& x,
            int64_t width, int64_t stride, bool bottleneck) {
  const int64_t out = bottleneck ? width * kBottleneckExpansion : width;
  std::vector<Network::ConvolutionOptions> layers;
  if (bottleneck) {
    layers = {{.out = width, .kernel = 1},
              {.out = width, .kernel = 3, .stride = stride},
              {.out = out, .kernel = 1}};
  } else {
    layers = {{.out = width, .kernel = 3, .stride = stride},
              {.out = out, .kernel = 3}};
  }
  Value y = x;
  for (size_t i = 0; i + 1 < layers.size(); ++i) {
    y = ConvolutionAndNorm(network, absl::StrCat(name, ".conv", i + 1),
                           absl::StrCat(name, ".bn", i + 1), y, layers[i],
                           /*relu=*/true);
  }
  Network::ConvolutionOptions last = layers.back();
  last.bias = false;
  last.padding = last.kernel / 2;
  y = network.Convolution(absl::StrCat(name, ".conv", layers.size()), y, last);
  const std::string norm = absl::StrCat(name, ".bn", layers.size());
  if (stride == 1 && x.shape.c == out) {
    return network.BatchNormAddRelu(norm, y, x);
  }
  // Before the shortcut's tensors, as in the state_dict.
  network.DeclareBatchNorm(norm, out);
  const Value shortcut = ConvolutionAndNorm(
      network, name + ".downsample.0", name + ".downsample.1", x,
      {.out = out, .stride = stride}, /*relu=*/false);
  return network.BatchNormAddRelu(norm, y, shortcut);
}

// torchvision's construction draws the shortcut of a block before the block,
// and then all convolutions again, by He et al. (2015) for the fan out.
void AddTorchvisionDraws(Network& network,
                         const std::vector<std::string>& convolutions) {
  std::vector<std::string> constructed;
  size_t block = 0;  // Where the current block's convolutions begin.
  std::string prefix;
  for (const std::string& name : convolutions) {
    const std::string own = name.substr(0, name.rfind(".conv"));
    if (!absl::StrContains(name, ".downsample") && own != prefix) {
      prefix = own;
      block = constructed.size();
    }
    const bool shortcut = absl::StrContains(name, ".downsample");
    constructed.insert(
        shortcut ? constructed.begin() + static_cast<std::ptrdiff_t>(block)
                 : constructed.end(),
        name);
  }
  for (const std::string& name : constructed) {
    network.DrawAsTorchConstructs(name);
  }
  network.DrawAsTorchConstructs("fc");
  for (const std::string& name : convolutions) {
    network.DrawHeNormalFanOut(name);
  }
}

}  // namespace

Network D2lResNet18(const NetworkInput& input, int64_t width) {
  Network network("resnet18_d2l", ShapeOf(input));
  Value x = network.Convolution("0", network.input(),
                                {.out = width, .kernel = 3, .padding = 1});
  x = network.BatchNorm("1", x, /*relu=*/true);
  for (int stage = 0; stage < 4; ++stage) {
    for (int block = 0; block < 2; ++block) {
      x = D2lResidual(network,
                      absl::StrCat("resnet_block", stage + 1, ".", block), x,
                      width << stage, stage > 0 && block == 0 ? 2 : 1);
    }
  }
  x = network.GlobalAveragePool("global_avg_pool", x);
  network.Linear("fc.1", x, {.out = input.classes});
  // What PyTorch's modules draw when constructed, and then init_weights.
  std::vector<std::string> layers;
  for (const TensorDescription& parameter : network.parameters()) {
    if (parameter.shape.size() > 1) {
      layers.push_back(
          parameter.name.substr(0, parameter.name.rfind(".weight")));
    }
  }
  for (const std::string& layer : layers) network.DrawAsTorchConstructs(layer);
  for (const std::string& layer : layers) {
    network.AddDraw(layer + ".weight", Draw::Kind::kNormal, kD2lWeightScale);
  }
  return network;
}

Network ResNet(const NetworkInput& input, const ResNetOptions& options) {
  Network network(options.name, ShapeOf(input));
  Value x = ConvolutionAndNorm(network, "conv1", "bn1", network.input(),
                               {.out = options.width, .kernel = 7, .stride = 2},
                               /*relu=*/true);
  x = network.Pool("maxpool", x,
                   {.maximum = true, .kernel = 3, .stride = 2, .padding = 1});
  for (size_t stage = 0; stage < options.blocks.size(); ++stage) {
    for (int block = 0; block < options.blocks[stage]; ++block) {
      x = Block(network, absl::StrCat("layer", stage + 1, ".", block), x,
                options.width << stage, stage > 0 && block == 0 ? 2 : 1,
                options.bottleneck);
    }
  }
  x = network.GlobalAveragePool("avgpool", x);
  network.Linear("fc", x, {.out = input.classes});
  std::vector<std::string> convolutions;
  for (const TensorDescription& parameter : network.parameters()) {
    if (parameter.shape.size() == 4) {
      convolutions.push_back(
          parameter.name.substr(0, parameter.name.rfind(".weight")));
    }
  }
  AddTorchvisionDraws(network, convolutions);
  return network;
}

}  // namespace lockstep
