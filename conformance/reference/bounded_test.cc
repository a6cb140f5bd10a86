// The error bound on sums of products, on sums whose float32 error is known.
#include "conformance/reference/bounded.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// 1 + 2^-24 rounds to 1: n such additions lose n * 2^-24 together, the worst
// that a float32 sum can do. The bound must hold, and not by much.
TEST(BoundedTest, WorstCaseSumIsWithinTheBoundAndCloseToIt) {
  for (const int64_t n : {1, 2, 3, 10, 500, 4096}) {
    std::vector<float> terms(n + 1, 0x1p-24f);
    terms[0] = 1;
    float sum = 0;
    for (const float term : terms) sum += term;
    Sums sums(1);
    const Factor ones(std::vector<float>{1});
    const Factor factor(terms);
    for (int64_t i = 0; i <= n; ++i) sums.AddScaled(0, factor, i, ones, 0, 1);
    const Bounded got = sums.Finish(n + 1);
    const double error = std::abs(sum - got.value[0]);
    EXPECT_EQ(error, static_cast<double>(n) * 0x1p-24);
    EXPECT_LE(error, got.bound[0]);
    EXPECT_LE(got.bound[0], 2.01 * error);
  }
}

// The factors' own bounds e and f come out as |a| f + e |b| + e f.
TEST(BoundedTest, FactorsPassTheirBoundsOn) {
  Bounded a(1), b(1);
  a.value = {2}, a.bound = {0.5};
  b.value = {-3}, b.bound = {0.25};
  Sums sums(1);
  sums.AddScaled(0, Factor(a), 0, Factor(b), 0, 1);
  const Bounded got = sums.Finish(1);
  EXPECT_EQ(got.value[0], -6);
  EXPECT_GE(got.bound[0], 2 * 0.25 + 3 * 0.5 + 0.5 * 0.25);
  EXPECT_NEAR(got.bound[0], 2 * 0.25 + 3 * 0.5 + 0.5 * 0.25, 1e-5);
}

TEST(BoundedTest, ZeroTermsAreExact) {
  Sums sums(1);
  EXPECT_EQ(sums.Finish(0).value[0], 0);
  EXPECT_EQ(sums.Finish(0).bound[0], 0);
  EXPECT_EQ(Gamma(0), 0);
}

TEST(BoundedTest, LargestErrorIsInBounds) {
  Bounded want(3);
  want.value = {1, 2, 3};
  want.bound = {0.5, 0.25, 0};
  EXPECT_EQ(LargestError(want, std::vector<float>{1, 2, 3}), 0);
  EXPECT_EQ(LargestError(want, std::vector<float>{1.25, 1.75, 3}), 1);
  EXPECT_EQ(LargestError(want, std::vector<float>{0, 2, 3}), 2);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(LargestError(want, std::vector<float>{1, 2, 4}), infinity);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(LargestError(want, std::vector<float>{nan, 2, 3}), infinity);
}

TEST(BoundedTest, NanStaysNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Sums sums(1);
  const Factor factor(std::vector<float>{nan});
  sums.AddScaled(0, factor, 0, factor, 0, 1);
  EXPECT_TRUE(std::isnan(sums.Finish(1).value[0]));
  EXPECT_TRUE(std::isnan(sums.Finish(1).bound[0]));
}

}  // namespace
}  // namespace lockstep
