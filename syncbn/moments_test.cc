// Tests of merging means and deviations.
#include "syncbn/moments.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

Moments<double> Of(const std::vector<double>& numbers) {
  Moments<double> moments;
  moments.count = static_cast<int64_t>(numbers.size());
  for (const double x : numbers) moments.mean += x / numbers.size();
  for (const double x : numbers) {
    moments.m2 += (x - moments.mean) * (x - moments.mean);
  }
  return moments;
}

TEST(MergeMomentsTest, GivesThoseOfTheUnion) {
  // Whole numbers whose means are whole: every operation is exact.
  const Moments<double> merged = MergeMoments(Of({1, 3}), Of({5, 7, 8, 8}));
  EXPECT_EQ(merged.count, 6);
  EXPECT_NEAR(merged.mean, 32.0 / 6, 1e-15);
  EXPECT_NEAR(merged.m2, Of({1, 3, 5, 7, 8, 8}).m2, 1e-13);
}

TEST(MergeMomentsTest, WeighsByCount) {
  // What a mean of means, 5, would miss.
  const Moments<double> merged = MergeMoments(Of({0, 0, 0}), Of({10}));
  EXPECT_EQ(merged.mean, 2.5);
  EXPECT_EQ(merged.m2, 75);
}

TEST(MergeMomentsTest, IgnoresAnEmptySetWhateverItHolds) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const Moments<double> some = Of({1, 2, 4});
  const Moments<double> none = {0, kNan, kNan};
  for (const Moments<double>& merged :
       {MergeMoments(some, none), MergeMoments(none, some)}) {
    EXPECT_EQ(merged.count, some.count);
    EXPECT_EQ(merged.mean, some.mean);
    EXPECT_EQ(merged.m2, some.m2);
  }
}

TEST(MergeMomentsTest, KeepsEqualMeansToTheBit) {
  const float mean = 1.1f;
  const Moments<float> a = {3, mean, 0};
  const Moments<float> b = {1000003, mean, 0};
  EXPECT_EQ(MergeMoments(a, b).mean, mean);
  EXPECT_EQ(MergeMoments(a, b).m2, 0);
}

TEST(MergeMomentsTest, HasNoCancellationFarFromZero) {
  // Two halves of 2^24 + {0, 2}: E[x^2] - E[x]^2 in float32 gives garbage.
  const Moments<float> a = {2, 16777216.0f, 0};
  const Moments<float> b = {2, 16777218.0f, 0};
  EXPECT_EQ(MergeMoments(a, b).m2, 4);
}

TEST(VarianceTest, DividesByNOrNMinusOne) {
  const Moments<double> moments = Of({1, 2, 3, 6});
  EXPECT_DOUBLE_EQ(BiasedVariance(moments), 3.5);
  EXPECT_DOUBLE_EQ(UnbiasedVariance(moments), 14.0 / 3);
}

TEST(VarianceTest, OfTooFewNumbersIsZeroOrNan) {
  EXPECT_EQ(BiasedVariance(Moments<double>{}), 0);
  EXPECT_EQ(BiasedVariance(Of({5})), 0);
  EXPECT_TRUE(std::isnan(UnbiasedVariance(Of({5}))));
  EXPECT_TRUE(std::isnan(UnbiasedVariance(Moments<double>{})));
}

TEST(InverseDeviationTest, HasEpsilonUnderTheRoot) {
  EXPECT_DOUBLE_EQ(InverseDeviation(3.75, 0.25), 0.5);
}

}  // namespace
}  // namespace lockstep
