// ResNet-18's layers and its initial weights.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/cpu/classifier.h"
#include "models/cpu/layer.h"
#include "models/cpu/layers.h"
#include "models/model.h"
#include "models/networks/initialization.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

constexpr int64_t kClasses = 10;
constexpr int64_t kStages[] = {64, 128, 256, 512};  // Channels.
constexpr int kBlocksPerStage = 2;

// The description of a network as its layers are named, one by one, in the
// order of PyTorch's state_dict.
struct Description {
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  Buffers buffers;

  // Both return the index of the first of what they add.
  int AddAffine(const std::string& name, std::vector<int64_t> weight) {
    const int64_t out = weight[0];
    shapes.emplace_back(absl::StrCat(name, ".weight"), std::move(weight));
    shapes.emplace_back(absl::StrCat(name, ".bias"), std::vector<int64_t>{out});
    return static_cast<int>(shapes.size()) - 2;
  }

  ConvolutionOptions Convolution(const std::string& name, int64_t in,
                                 int64_t out, int64_t kernel, int64_t stride) {
    const int weights = AddAffine(name, {out, in, kernel, kernel});
    return {.name = name,
            .weights = weights,
            .bias = weights + 1,
            .out_channels = out,
            .kernel = kernel,
            .stride = stride,
            .padding = kernel / 2};
  }

  BatchNormLayerOptions BatchNorm(const std::string& name, int64_t channels) {
    const int weight = AddAffine(name, {channels});
    const int mean = buffers.AddFloats(name + ".running_mean", {channels});
    const int variance = buffers.AddFloats(name + ".running_var", {channels});
    std::ranges::fill(buffers.value(variance), 1.0f);
    return {.name = name,
            .weight = weight,
            .bias = weight + 1,
            .running_mean = mean,
            .running_variance = variance,
            .batches = buffers.AddCounter(name + ".num_batches_tracked")};
  }

  // One residual block; its shortcut is a convolution if stride > 1.
  ResidualOptions Residual(const std::string& name, int64_t in, int64_t out,
                           int64_t stride) {
    ResidualOptions options;
    options.name = name;
    options.conv1 = Convolution(name + ".conv1", in, out, 3, stride);
    options.conv2 = Convolution(name + ".conv2", out, out, 3, 1);
    if (stride > 1) {
      options.conv3 = Convolution(name + ".conv3", in, out, 1, stride);
    }
    options.bn1 = BatchNorm(name + ".bn1", out);
    options.bn2 = BatchNorm(name + ".bn2", out);
    return options;
  }

  std::unique_ptr<Layer> Network() {
    std::vector<std::unique_ptr<Layer>> layers;
    layers.push_back(CreateConvolution(Convolution("0", 1, kStages[0], 3, 1)));
    BatchNormLayerOptions stem = BatchNorm("1", kStages[0]);
    stem.relu = true;
    layers.push_back(CreateBatchNormLayer(std::move(stem)));
    int64_t in = kStages[0];
    int stage = 1;
    for (const int64_t out : kStages) {
      for (int block = 0; block < kBlocksPerStage; ++block) {
        const std::string name =
            absl::StrCat("resnet_block", stage, ".", block);
        layers.push_back(
            CreateResidual(Residual(name, in, out, in == out ? 1 : 2)));
        in = out;
      }
      ++stage;
    }
    layers.push_back(CreateGlobalAveragePool("global_avg_pool"));
    const int weights = AddAffine("fc.1", {kClasses, in});
    layers.push_back(CreateLinear({.name = "fc.1",
                                   .weights = weights,
                                   .bias = weights + 1,
                                   .out_features = kClasses,
                                   .outputs_first = true}));
    return CreateSequential("resnet18", std::move(layers));
  }
};

// What PyTorch's modules are constructed with: uniform in +-1/sqrt(fan in). The
// weights' numbers are drawn, in their turn, and overwritten later.
void DrawDefaults(TorchGenerator& generator, Parameters& parameters,
                  int weights) {
  const ParameterSpec& spec = parameters.specs()[weights];
  const int64_t fan_in = spec.size / spec.shape[0];
  const float bound =
      static_cast<float>(1 / std::sqrt(static_cast<double>(fan_in)));
  generator.FillUniform(-bound, bound, parameters.value(weights));
  generator.FillUniform(-bound, bound, parameters.value(weights + 1));
}

Parameters InitialParameters(const Description& description, uint64_t seed) {
  constexpr float kScale = 0.01f;
  Parameters parameters(description.shapes);
  std::vector<int> affine;  // Weights of convolutions and linear layers.
  for (int i = 0; i < parameters.count(); i += 2) {
    if (parameters.specs()[i].shape.size() > 1) {
      affine.push_back(i);
    } else {
      std::ranges::fill(parameters.value(i), 1.0f);  // Batch norm's weight.
    }
  }
  TorchGenerator generator(seed);
  for (const int weights : affine) {
    DrawDefaults(generator, parameters, weights);
  }
  for (const int weights : affine) {
    generator.FillNormal(parameters.value(weights));
    for (float& x : parameters.value(weights)) x *= kScale;
  }
  return parameters;
}

}  // namespace

std::unique_ptr<Model> CreateResNet18(uint64_t seed, int64_t image_size) {
  Description description;
  std::unique_ptr<Layer> network = description.Network();
  Parameters parameters = InitialParameters(description, seed);
  const Shape image{.n = 1, .c = 1, .h = image_size, .w = image_size};
  return CreateClassifier(image, kClasses, std::move(parameters),
                          std::move(description.buffers), std::move(network));
}

}  // namespace lockstep
