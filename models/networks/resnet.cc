#include "models/networks/resnet.h"

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

void DeclareConvolution(Network& network, const std::string& name, int64_t in,
                        int64_t out, int64_t kernel) {
  network.Declare(name + ".weight", {out, in, kernel, kernel});
  network.Declare(name + ".bias", {out});
}

// Adds the chapter's Residual, which has its convolutions before its batch
// norms in the state_dict. Its shortcut is a convolution if stride > 1.
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

// Adds torchvision's convolution and batch norm, and ReLU if asked for.
Value ConvolutionAndNorm(Network& network, const std::string& convolution,
                         const std::string& norm, const Value& x,
                         Network::ConvolutionOptions options, bool relu) {
  options.bias = false;
  options.padding = options.kernel / 2;
  return network.BatchNorm(norm, network.Convolution(convolution, x, options),
                           relu);
}

// Adds one block of a torchvision ResNet: two convolutions of 3x3, or one each
// of 1x1, 3x3 and 1x1.
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
  // Declared before the shortcut's tensors, as in the state_dict.
  network.DeclareBatchNorm(norm, out);
  const Value shortcut = ConvolutionAndNorm(
      network, name + ".downsample.0", name + ".downsample.1", x,
      {.out = out, .stride = stride}, /*relu=*/false);
  return network.BatchNormAddRelu(norm, y, shortcut);
}

// torchvision's constructor draws the shortcut of a block before the block. It
// then draws all convolutions again, by He et al. (2015) for the fan out.
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

// ResNet-18 of d2l's chapter on training on several GPUs, with a 3x3 stem of
// stride 1, no max-pool, and a bias in every convolution. Tensors have the
// names of the chapter's state_dict ("resnet_block2.0.conv3.bias",
// "fc.1.weight"). First values are PyTorch's after manual_seed(seed), the
// module's construction, and the chapter's init_weights (normal times 0.01).
// width: the channels of the first stage.
Network D2lResNet18(const NetworkInput& input, int64_t width) {
  Network network("resnet18_d2l", input.shape());
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
  // PyTorch's modules draw their weights when constructed, then init_weights
  // draws again.
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

struct ResNetOptions {
  std::string name;
  std::vector<int> blocks = {2, 2, 2, 2};  // For each of the four stages.
  bool bottleneck = false;
  int64_t width = 64;  // Channels of the first stage.
};

// torchvision's ResNet, with its names and first values. The stride of a
// bottleneck is in its 3x3 convolution ("v1.5").
Network ResNet(const NetworkInput& input, const ResNetOptions& options) {
  Network network(options.name, input.shape());
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

NetworkEntry TorchvisionResNet(const std::string& name, const std::string& what,
                               const std::vector<int>& blocks,
                               bool bottleneck) {
  return {
      .name = name,
      .options = "width=64",
      .what = what,
      .source = "torchvision",
      .input = {.channels = 3, .height = 224, .width = 224, .classes = 1000},
      .benchmark_size = 112,
      .benchmark_batch = 16,
      .describe = [=](const NetworkInput& input, NetworkOptions& options) {
        return ResNet(input,
                      {.name = name,
                       .blocks = blocks,
                       .bottleneck = bottleneck,
                       .width = options.Integer("width", 64, 1, kMaxWidth)});
      }};
}

}  // namespace

std::vector<NetworkEntry> D2lResNets() {
  return {{.name = "resnet18_d2l",
           .options = "width=64",
           .what = "ResNet-18 of the d2l chapter, for small images",
           .source = "d2l",
           .describe = [](const NetworkInput& input, NetworkOptions& options) {
             return D2lResNet18(input,
                                options.Integer("width", 64, 1, kMaxWidth));
           }}};
}

std::vector<NetworkEntry> ResNets() {
  return {
      TorchvisionResNet("resnet18", "ResNet-18 as torchvision has it",
                        {2, 2, 2, 2}, /*bottleneck=*/false),
      TorchvisionResNet("resnet34", "ResNet-34 as torchvision has it",
                        {3, 4, 6, 3}, /*bottleneck=*/false),
      TorchvisionResNet("resnet50", "ResNet-50 as torchvision has it (v1.5)",
                        {3, 4, 6, 3}, /*bottleneck=*/true)};
}

}  // namespace lockstep
