#include "models/cuda/weight_layout.h"

#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/networks/network.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

std::vector<float> OnGpu(const WeightLayout& layout, size_t size) {
  std::vector<float> host(size), gpu(size), back(size);
  std::iota(host.begin(), host.end(), 0.0f);
  ToGpuOrder(layout, host, gpu);
  ToHostOrder(layout, gpu, back);
  EXPECT_EQ(back, host);
  return gpu;
}

TEST(WeightLayoutTest, ChannelsComeLast) {
  EXPECT_THAT(OnGpu({.out = 2, .channels = 2, .positions = 3}, 12),
              ElementsAre(0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11));
}

TEST(WeightLayoutTest, InputsFirstAreTransposed) {
  // The host's element (channel c, position p, output o) is number
  // (c * 2 + p) * 3 + o.
  EXPECT_THAT(
      OnGpu({.out = 3, .channels = 2, .positions = 2, .inputs_first = true},
            12),
      ElementsAre(0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11));
}

TEST(WeightLayoutTest, FollowsTheNetwork) {
  Network network("test", {.c = 3, .h = 4, .w = 5});
  const Value x = network.Convolution("conv", network.input(),
                                      {.out = 2, .kernel = 3, .padding = 1});
  const Value y = network.BatchNorm("bn", x, /*relu=*/true);
  const Value z = network.Linear("linear", y, {.out = 7, .per_position = true});
  network.Linear("last", z, {.out = 6, .inputs_first = true});
  const std::vector<WeightLayout> layouts = WeightLayoutsOf(network);
  const auto expect = [&](int parameter, int64_t out, int64_t channels,
                          int64_t positions, bool inputs_first) {
    const WeightLayout& layout = layouts[parameter];
    const std::string& name = network.parameters()[parameter].name;
    EXPECT_EQ(layout.out, out) << name;
    EXPECT_EQ(layout.channels, channels) << name;
    EXPECT_EQ(layout.positions, positions) << name;
    EXPECT_EQ(layout.inputs_first, inputs_first) << name;
  };
  expect(0, 2, 3, 9, false);  // conv.weight
  expect(1, 2, 1, 1, false);  // conv.bias
  expect(2, 2, 1, 1, false);  // bn.weight
  expect(4, 7, 2, 1, false);  // linear.weight
  expect(6, 6, 7, 20, true);  // last.weight
}

}  // namespace
}  // namespace lockstep
