// Batch norm and residual blocks as layers, and networks as classifiers.
#include "models/cpu/classifier.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/layer_test_util.h"
#include "models/cpu/layers.h"
#include "models/model.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Ne;

auto Invalid(const char* what) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
}

// Unrelated tensors come first: indices matter.
BatchNormLayerOptions Options() {
  return {.name = "bn",
          .weight = 1,
          .bias = 2,
          .running_mean = 1,
          .running_variance = 2,
          .batches = 3};
}

Parameters MakeParameters(int64_t channels) {
  Parameters parameters(
      {{"other", {3}}, {"weight", {channels}}, {"bias", {channels}}});
  for (int64_t c = 0; c < channels; ++c) {
    parameters.value(1)[c] = 1 + static_cast<float>(c % 5 - 2) / 4;
    parameters.value(2)[c] = static_cast<float>(c % 7 - 3) / 8;
  }
  return parameters;
}

Buffers MakeBuffers(int64_t channels) {
  Buffers buffers;
  buffers.AddFloats("other", {2});
  buffers.AddFloats("running_mean", {channels});
  buffers.AddFloats("running_var", {channels});
  buffers.AddCounter("num_batches_tracked");
  std::ranges::fill(buffers.value(1), 2.0f);
  std::ranges::fill(buffers.value(2), 3.0f);
  return buffers;
}

// What the layer computes, its gradients and its running statistics are
// compared with PyTorch's in models/networks/golden_test.cc.

TEST(BatchNormLayerTest, AnEmptyBatchHasZeroGradientsAndIsNotTracked) {
  Parameters parameters = MakeParameters(3);
  Buffers buffers = MakeBuffers(3);
  std::ranges::fill(parameters.gradients(), std::nanf(""));
  const auto run = RunLayer(CreateBatchNormLayer(Options()), parameters,
                            {0, 3, 2, 2}, true, &buffers);
  ASSERT_THAT(run, IsOk());
  EXPECT_THAT(parameters.gradient(1), Each(0.0f));
  EXPECT_THAT(parameters.gradient(2), Each(0.0f));
  EXPECT_THAT(buffers.value(1), Each(2.0f));
  EXPECT_THAT(buffers.value(2), Each(3.0f));
  EXPECT_EQ(buffers.counter(3), 0);
  EXPECT_THAT(run->ready, ElementsAre(2, 1));
}

TEST(BatchNormLayerTest, NamesWhatDoesNotFit) {
  Parameters parameters = MakeParameters(3);
  Buffers buffers = MakeBuffers(3);
  const auto run = [&](const BatchNormLayerOptions& options,
                       const Shape& input) {
    return RunLayer(CreateBatchNormLayer(options), parameters, input, true,
                    &buffers)
        .status();
  };
  const Shape input = {2, 3, 1, 1};
  EXPECT_THAT(run(Options(), input), IsOk());
  EXPECT_THAT(
      run(Options(), {2, 4, 1, 1}),
      Invalid("bn: parameter weight is [3], the layer and its input need [4]"));
  EXPECT_THAT(run(Options(), {1, 3, 1, 1}),
              Invalid("bn: batch norm: one value"));
  BatchNormLayerOptions options = Options();
  options.running_mean = 0;
  EXPECT_THAT(run(options, input), Invalid("bn: buffer other is [2]"));
  options = Options();
  options.batches = 4;
  EXPECT_THAT(run(options, input), Invalid("bn: no buffer 4 among 4"));
  options.batches = 2;
  EXPECT_THAT(run(options, input), Invalid("bn: buffer running_var is [3]"));
  options = Options();
  options.bias = -1;
  EXPECT_THAT(run(options, input), Invalid("bn: no parameter -1 among 3"));
}

// Residual blocks, as far as golden_test.cc does not show them: the order of
// what a block does, its memory, and blocks that do not fit.

// A block of 1x1 convolutions; the parameters of each layer lie in the order
// conv1, conv2, bn1, bn2, conv3.
struct Block {
  Block(int64_t in, int64_t out, bool shortcut, int64_t stride)
      : parameters({{"conv1.weight", {out, in, 1, 1}},
                    {"conv1.bias", {out}},
                    {"conv2.weight", {out, out, 1, 1}},
                    {"conv2.bias", {out}},
                    {"bn1.weight", {out}},
                    {"bn1.bias", {out}},
                    {"bn2.weight", {out}},
                    {"bn2.bias", {out}},
                    {"conv3.weight", {out, in, 1, 1}},
                    {"conv3.bias", {out}}}) {
    std::ranges::copy(Integers(parameters.values().size(), 2, /*seed=*/6),
                      parameters.values().begin());
    for (const char* name : {"bn1", "bn2"}) {
      buffers.AddFloats(name, {out});
      buffers.AddFloats(name, {out});
      buffers.AddCounter(name);
    }
    options = {.name = "block",
               .conv1 = Convolution(0, out, stride),
               .conv2 = Convolution(2, out, 1),
               .conv3 = {},
               .bn1 = BatchNorm(4, 0),
               .bn2 = BatchNorm(6, 3)};
    if (shortcut) options.conv3 = Convolution(8, out, stride);
  }

  static ConvolutionOptions Convolution(int weights, int64_t out,
                                        int64_t stride) {
    return {.name = "conv",
            .weights = weights,
            .bias = weights + 1,
            .out_channels = out,
            .stride = stride};
  }
  static BatchNormLayerOptions BatchNorm(int weight, int mean) {
    return {.name = "bn",
            .weight = weight,
            .bias = weight + 1,
            .running_mean = mean,
            .running_variance = mean + 1,
            .batches = mean + 2};
  }

  absl::StatusOr<LayerRun> Run(const Shape& input, bool input_gradient) {
    return RunLayer(CreateResidual(options), parameters, input, input_gradient,
                    &buffers);
  }

  Parameters parameters;
  Buffers buffers;
  ResidualOptions options;
};

// With bn2's weight 0 and its bias 1 the convolutions are of no effect: what
// is left is relu(shortcut(x) + 1), and its gradient, exactly.
TEST(ResidualTest, AddsTheShortcut) {
  const Shape input = {.n = 3, .c = 4, .h = 4, .w = 2};
  Block block(4, 4, /*shortcut=*/false, 1);
  std::ranges::fill(block.parameters.value(6), 0.0f);
  std::ranges::fill(block.parameters.value(7), 1.0f);
  const auto run = block.Run(input, true);
  ASSERT_THAT(run, IsOk());
  ASSERT_EQ(run->output, input);
  std::vector<double> y, dx;
  for (size_t i = 0; i < run->x.size(); ++i) {
    const double sum = run->x[i] + 1;
    y.push_back(std::max(sum, 0.0));
    dx.push_back(sum > 0 ? run->dy[i] : 0);
  }
  EXPECT_THAT(CheckNear(run->y, y), IsOk());
  EXPECT_THAT(CheckNear(run->dx, dx), IsOk());
}

// With the shortcut's weights 0 what is left of it is its bias; the gradient of
// x comes from both, so a wrong or missing one shows in their difference.
TEST(ResidualTest, AddsTheGradientsOfBothBranches) {
  const Shape input = {.n = 3, .c = 4, .h = 4, .w = 2};
  const auto gradient = [&](bool branch, bool shortcut) {
    Block block(4, 4, /*shortcut=*/true, 1);
    // ReLU passes all, whatever the branches give: y > 0.
    std::ranges::fill(block.parameters.value(7), 1e6f);
    if (!branch) std::ranges::fill(block.parameters.value(6), 0.0f);
    if (!shortcut) std::ranges::fill(block.parameters.value(8), 0.0f);
    const auto run = block.Run(input, true);
    EXPECT_THAT(run, IsOk());
    return run->dx;
  };
  const std::vector<float> both = gradient(true, true);
  const std::vector<float> branch = gradient(true, false);
  const std::vector<float> shortcut = gradient(false, true);
  ASSERT_THAT(branch, Contains(Ne(0.0f)));
  ASSERT_THAT(shortcut, Contains(Ne(0.0f)));
  for (size_t i = 0; i < both.size(); ++i) {
    // Of magnitude 7 * 2 * 4 each, rounded once.
    EXPECT_NEAR(both[i], branch[i] + shortcut[i], 0x1p-24 * 2 * 56);
  }
}

TEST(ResidualTest, GradientsAreReadyAsTheyBecomeFinal) {
  for (const int64_t n : {0, 3}) {
    for (const bool input_gradient : {false, true}) {
      Block identity(4, 4, /*shortcut=*/false, 1);
      const auto run = identity.Run({n, 4, 4, 2}, input_gradient);
      ASSERT_THAT(run, IsOk());
      EXPECT_THAT(run->ready, ElementsAre(7, 6, 3, 2, 5, 4, 1, 0));
      Block strided(4, 6, /*shortcut=*/true, 2);
      const auto strided_run = strided.Run({n, 4, 4, 2}, input_gradient);
      ASSERT_THAT(strided_run, IsOk());
      EXPECT_EQ(strided_run->output, (Shape{n, 6, 2, 1}));
      EXPECT_THAT(strided_run->ready,
                  ElementsAre(7, 6, 9, 8, 3, 2, 5, 4, 1, 0));
      if (n == 0) {
        EXPECT_THAT(strided.parameters.gradients(), Each(0.0f));
      }
    }
  }
}

TEST(ResidualTest, RejectsAShortcutOfAnotherShape) {
  EXPECT_THAT(
      Block(4, 6, false, 1).Run({2, 4, 4, 2}, true).status(),
      Invalid("block: the shortcut gives 4x4x2, the convolutions 6x4x2"));
  EXPECT_THAT(
      Block(4, 4, false, 2).Run({2, 4, 4, 2}, true).status(),
      Invalid("block: the shortcut gives 4x4x2, the convolutions 4x2x1"));
  EXPECT_THAT(Block(4, 4, true, 1).Run({2, 5, 4, 2}, true).status(),
              Invalid("conv: parameter conv1.weight is [4,4,1,1]"));
  EXPECT_EQ(CreateResidual(Block(4, 4, true, 1).options).batch_norm_count, 2);
}

// The loss.

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Metrics Loss(const std::vector<float>& logits,
             const std::vector<int32_t>& labels, int64_t classes) {
  return SoftmaxCrossEntropy(logits, labels, classes, 0, {});
}

TEST(SoftmaxCrossEntropyTest, EqualLogitsGiveLogOfClasses) {
  std::vector<float> gradient(8, kNan);
  const Metrics metrics =
      SoftmaxCrossEntropy(std::vector<float>(8, 3.0f),
                          std::vector<int32_t>{0, 2}, 4, 2.0f, gradient);
  EXPECT_NEAR(metrics.loss_sum, 2 * std::log(4.0), 1e-15);
  EXPECT_EQ(metrics.samples, 2);
  EXPECT_EQ(metrics.correct, 1);  // Of equal logits the first counts.
  EXPECT_THAT(gradient,
              ElementsAre(-1.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, -1.5f, 0.5f));
}

TEST(SoftmaxCrossEntropyTest, GradientIsTheSlopeOfTheLoss) {
  const std::vector<float> logits = {0.5f, -1.25f, 2.0f, 0.0f, 3.0f, -2.0f};
  const std::vector<int32_t> labels = {1, 1};
  std::vector<float> gradient(6, kNan);
  SoftmaxCrossEntropy(logits, labels, 3, 1, gradient);
  constexpr float kStep = 0x1p-10f;  // Exact in these logits.
  for (size_t i = 0; i < logits.size(); ++i) {
    std::vector<float> above = logits, below = logits;
    above[i] += kStep;
    below[i] -= kStep;
    const double slope =
        (Loss(above, labels, 3).loss_sum - Loss(below, labels, 3).loss_sum) /
        (2 * kStep);
    // The third derivative of the loss is below 1/2: step^2 / 6 * 1/2.
    EXPECT_NEAR(gradient[i], slope, 0x1p-20 / 12 + 0x1p-24);
  }
}

TEST(SoftmaxCrossEntropyTest, TakesHugeLogitsAndNone) {
  std::vector<float> gradient(2, kNan);
  const Metrics metrics =
      SoftmaxCrossEntropy(std::vector<float>{1e30f, -1e30f},
                          std::vector<int32_t>{1}, 2, 1, gradient);
  EXPECT_NEAR(metrics.loss_sum, 2e30, 1e24);
  EXPECT_EQ(metrics.correct, 0);
  EXPECT_THAT(gradient, ElementsAre(1.0f, -1.0f));
  EXPECT_EQ(Loss({}, {}, 10).loss_sum, 0);
  EXPECT_EQ(Loss({}, {}, 10).samples, 0);
}

TEST(SoftmaxCrossEntropyTest, GradientMayOverwriteLogits) {
  const std::vector<int32_t> labels = {0, 1};
  std::vector<float> logits = {1, 2, 3, -1, 0, 1}, gradient(6);
  SoftmaxCrossEntropy(logits, labels, 3, 0.5f, gradient);
  SoftmaxCrossEntropy(logits, labels, 3, 0.5f, logits);
  EXPECT_EQ(logits, gradient);
}

TEST(SoftmaxCrossEntropyTest, NanIsNeverCorrectAndShowsInTheLoss) {
  for (size_t at = 0; at < 3; ++at) {
    for (const int32_t label : {0, 1, 2}) {
      std::vector<float> logits = {1, 1, 1}, gradient(3);
      logits[at] = kNan;
      logits[label] += 5;
      const Metrics metrics = SoftmaxCrossEntropy(
          logits, std::vector<int32_t>{label}, 3, 1, gradient);
      EXPECT_EQ(metrics.correct, 0);
      EXPECT_TRUE(std::isnan(metrics.loss_sum));
      EXPECT_TRUE(std::isnan(gradient[label]));
    }
  }
  EXPECT_TRUE(std::isnan(Loss({kInfinity, 0}, {0}, 2).loss_sum));
}

// Networks that do not fit. models/networks tests the rest of a classifier.

constexpr Shape kSample = {.n = 1, .c = 1, .h = 1, .w = 2};

// Of two classes, whatever the outputs.
std::unique_ptr<Model> LinearClassifier(int64_t inputs, int64_t outputs) {
  Parameters parameters({{"W", {inputs, outputs}}, {"b", {outputs}}});
  return CreateClassifier(kSample, 2, std::move(parameters), Buffers(),
                          CreateLinear({.name = "linear",
                                        .weights = 0,
                                        .bias = 1,
                                        .out_features = outputs}));
}

TEST(ClassifierTest, GradientOfALinearClassifier) {
  const std::unique_ptr<Model> model = LinearClassifier(2, 2);
  const std::vector<float> images = {1, 2, 4, 8};
  const std::vector<int32_t> labels = {0, 1};
  ASSERT_THAT(model->ForwardBackward({images, labels}, 1, [](int) {}), IsOk());
  // Zero weights: softmax is 1/2 everywhere, so each sample adds x * (-+1/2).
  EXPECT_THAT(model->parameters().gradient(0),
              ElementsAre(1.5f, -1.5f, 3.0f, -3.0f));
  EXPECT_THAT(model->parameters().gradient(1), ElementsAre(0, 0));
}

TEST(ClassifierTest, RejectsANetworkThatGivesOtherLogits) {
  const std::vector<float> images = {1, 2};
  const std::vector<int32_t> labels = {1};
  EXPECT_THAT(
      LinearClassifier(2, 3)->Evaluate({images, labels}),
      StatusIs(absl::StatusCode::kInternal,
               HasSubstr("the network gives 3 logits a sample for 2 classes")));
  EXPECT_THAT(LinearClassifier(3, 2)->Evaluate({images, labels}),
              Invalid("linear: parameter W is [3,2]"));
}

}  // namespace
}  // namespace lockstep
