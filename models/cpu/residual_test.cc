// What resnet18_test.cc does not show: the order of what a block does, its
// memory, and blocks that do not fit.
#include "models/cpu/residual.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/buffers.h"
#include "models/cpu/batch_norm_layer.h"
#include "models/cpu/convolution.h"
#include "models/cpu/layer.h"
#include "models/cpu/layer_test_util.h"
#include "models/cpu/shape.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Ne;

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
    return RunLayer(*CreateResidual(options), parameters, buffers, nullptr,
                    input, input_gradient);
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
  const auto is = [](const char* what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(Block(4, 6, false, 1).Run({2, 4, 4, 2}, true).status(),
              is("block: the shortcut gives 4x4x2, the convolutions 6x4x2"));
  EXPECT_THAT(Block(4, 4, false, 2).Run({2, 4, 4, 2}, true).status(),
              is("block: the shortcut gives 4x4x2, the convolutions 4x2x1"));
  EXPECT_THAT(Block(4, 4, true, 1).Run({2, 5, 4, 2}, true).status(),
              is("conv: parameter conv1.weight is [4,4,1,1]"));
  EXPECT_EQ(CreateResidual(Block(4, 4, true, 1).options)->batch_norm_count(),
            2);
}

}  // namespace
}  // namespace lockstep
