// LeNet's layers and its initial weights.
#include "models/lenet.h"

#include <utility>
#include <vector>

#include "models/buffers.h"
#include "models/cpu/average_pool.h"
#include "models/cpu/classifier.h"
#include "models/cpu/convolution.h"
#include "models/cpu/layer.h"
#include "models/cpu/linear.h"
#include "models/cpu/sequential.h"
#include "models/cpu/shape.h"
#include "models/initialization.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

constexpr int64_t kClasses = 10;
constexpr Shape kImage = {.n = 1, .c = 1, .h = 28, .w = 28};

enum Index { kW1, kB1, kW2, kB2, kW3, kB3, kW4, kB4 };

Parameters InitialParameters(uint64_t seed) {
  Parameters parameters({{"W1", {20, 1, 3, 3}},
                         {"b1", {20}},
                         {"W2", {50, 20, 5, 5}},
                         {"b2", {50}},
                         {"W3", {800, 128}},
                         {"b3", {128}},
                         {"W4", {128, 10}},
                         {"b4", {10}}});
  constexpr float kScale = 0.01f;
  TorchGenerator generator(seed);
  for (const int weights : {kW1, kW2, kW3, kW4}) {
    generator.FillNormal(parameters.value(weights));
    for (float& x : parameters.value(weights)) x *= kScale;
  }
  return parameters;
}

}  // namespace

std::unique_ptr<Model> CreateLeNet(uint64_t seed) {
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(CreateConvolution({.name = "conv1",
                                      .weights = kW1,
                                      .bias = kB1,
                                      .out_channels = 20,
                                      .kernel = 3,
                                      .relu = true}));
  layers.push_back(CreateAveragePool("pool1", /*window=*/2));
  layers.push_back(CreateConvolution({.name = "conv2",
                                      .weights = kW2,
                                      .bias = kB2,
                                      .out_channels = 50,
                                      .kernel = 5,
                                      .relu = true}));
  layers.push_back(CreateAveragePool("pool2", /*window=*/2));
  layers.push_back(CreateLinear({.name = "linear1",
                                 .weights = kW3,
                                 .bias = kB3,
                                 .out_features = 128,
                                 .relu = true}));
  layers.push_back(CreateLinear({.name = "linear2",
                                 .weights = kW4,
                                 .bias = kB4,
                                 .out_features = kClasses,
                                 .relu = false}));
  return CreateClassifier(kImage, kClasses, InitialParameters(seed), Buffers(),
                          CreateSequential("lenet", std::move(layers)));
}

}  // namespace lockstep
