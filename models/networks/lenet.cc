// LeNet's layers and its initial weights.
#include <algorithm>
#include <span>
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
constexpr Shape kImage = {.n = 1, .c = 1, .h = 28, .w = 28};

// The description of a network as its layers are named, one by one.
struct Description {
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  Buffers buffers;
  std::vector<std::unique_ptr<Layer>> layers;

  // Returns the index of the first of the two.
  int Add(const std::string& weight, std::vector<int64_t> shape,
          const std::string& bias, int64_t out) {
    shapes.emplace_back(weight, std::move(shape));
    shapes.emplace_back(bias, std::vector<int64_t>{out});
    return static_cast<int>(shapes.size()) - 2;
  }

  void AddConvolution(int number, int64_t in, int64_t out, int64_t kernel,
                      bool relu) {
    const int weights =
        Add(absl::StrCat("W", number), {out, in, kernel, kernel},
            absl::StrCat("b", number), out);
    layers.push_back(CreateConvolution({.name = absl::StrCat("conv", number),
                                        .weights = weights,
                                        .bias = weights + 1,
                                        .out_channels = out,
                                        .kernel = kernel,
                                        .relu = relu}));
  }

  void AddBatchNorm(int number, int64_t channels) {
    const std::string name = absl::StrCat("bn", number);
    const int weight =
        Add(name + ".weight", {channels}, name + ".bias", channels);
    const int mean = buffers.AddFloats(name + ".running_mean", {channels});
    const int variance = buffers.AddFloats(name + ".running_var", {channels});
    std::ranges::fill(buffers.value(variance), 1.0f);
    layers.push_back(CreateBatchNormLayer(
        {.name = name,
         .weight = weight,
         .bias = weight + 1,
         .running_mean = mean,
         .running_variance = variance,
         .batches = buffers.AddCounter(name + ".num_batches_tracked"),
         .relu = true}));
  }

  void AddLinear(int number, int64_t in, int64_t out, bool relu) {
    const int weights = Add(absl::StrCat("W", number + 2), {in, out},
                            absl::StrCat("b", number + 2), out);
    layers.push_back(CreateLinear({.name = absl::StrCat("linear", number),
                                   .weights = weights,
                                   .bias = weights + 1,
                                   .out_features = out,
                                   .relu = relu}));
  }
};

Description Describe(bool batch_norm) {
  Description network;
  network.AddConvolution(1, 1, 20, 3, /*relu=*/!batch_norm);
  if (batch_norm) network.AddBatchNorm(1, 20);
  network.layers.push_back(CreateAveragePool("pool1", /*window=*/2));
  network.AddConvolution(2, 20, 50, 5, /*relu=*/!batch_norm);
  if (batch_norm) network.AddBatchNorm(2, 50);
  network.layers.push_back(CreateAveragePool("pool2", /*window=*/2));
  network.AddLinear(1, 800, 128, /*relu=*/true);
  network.AddLinear(2, 128, kClasses, /*relu=*/false);
  return network;
}

Parameters InitialParameters(const Description& network, uint64_t seed) {
  constexpr float kScale = 0.01f;
  Parameters parameters(network.shapes);
  TorchGenerator generator(seed);
  for (int i = 0; i < parameters.count(); i += 2) {
    const std::span<float> weights = parameters.value(i);
    if (parameters.specs()[i].shape.size() == 1) {  // Batch norm's.
      std::ranges::fill(weights, 1.0f);
      continue;
    }
    generator.FillNormal(weights);
    for (float& x : weights) x *= kScale;
  }
  return parameters;
}

std::unique_ptr<Model> Create(const std::string& name, bool batch_norm,
                              uint64_t seed) {
  Description network = Describe(batch_norm);
  Parameters parameters = InitialParameters(network, seed);
  return CreateClassifier(kImage, kClasses, std::move(parameters),
                          std::move(network.buffers),
                          CreateSequential(name, std::move(network.layers)));
}

}  // namespace

std::unique_ptr<Model> CreateLeNet(uint64_t seed) {
  return Create("lenet", /*batch_norm=*/false, seed);
}

std::unique_ptr<Model> CreateLeNetWithBatchNorm(uint64_t seed) {
  return Create("lenet_bn", /*batch_norm=*/true, seed);
}

}  // namespace lockstep
