#include "models/sgd.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Sizes around every vector width that a compiler may choose.
TEST(SgdUpdateTest, RoundsTheProductAndThenTheDifference) {
  for (size_t n = 0; n <= 70; ++n) {
    std::vector<float> values(n), gradients(n), want(n);
    for (size_t i = 0; i < n; ++i) {
      values[i] = 1.0f / static_cast<float>(i + 3);
      gradients[i] = 1.0f / static_cast<float>(2 * i + 7);
      // Through memory, so that no compiler can fuse the two.
      volatile float product = 0.3f * gradients[i];
      want[i] = values[i] - product;
    }
    SgdUpdate(values, gradients, 0.3f);
    EXPECT_EQ(values, want) << "n = " << n;
  }
}

// The control: on these inputs a fused update gives other bits.
TEST(SgdUpdateTest, DiffersFromAFusedUpdate) {
  const float e = std::numeric_limits<float>::epsilon();
  std::vector<float> values = {1.0f + 2 * e};
  const std::vector<float> gradients = {1.0f + e};
  SgdUpdate(values, gradients, 1.0f + e);
  // (1 + e)^2 rounds to 1 + 2e, which loses e^2.
  EXPECT_EQ(values[0], 0.0f);
  EXPECT_EQ(std::fma(-(1.0f + e), 1.0f + e, 1.0f + 2 * e), -e * e);
}

TEST(SgdUpdateTest, NanStaysNan) {
  std::vector<float> values = {1.0f, 1.0f};
  const std::vector<float> gradients = {std::nanf(""), 0.0f};
  SgdUpdate(values, gradients, 0.5f);
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_EQ(values[1], 1.0f);
}

}  // namespace
}  // namespace lockstep
