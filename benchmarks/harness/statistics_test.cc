#include "benchmarks/harness/statistics.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

TEST(PercentileTest, IsTheNearestRank) {
  const std::vector<double> samples = {15, 20, 35, 40, 50};
  // The position is ceil(p * 5 / 100), at least 1.
  const std::pair<double, double> cases[] = {{0, 15},  {5, 15},  {20, 15},
                                             {30, 20}, {40, 20}, {50, 35},
                                             {99, 50}, {100, 50}};
  for (const auto& [p, want] : cases) {
    EXPECT_EQ(Percentile(samples, p), want) << p;
    EXPECT_EQ(Percentile(std::vector<double>{7}, p), 7) << p;
  }
}

TEST(PercentileTest, OfOneToHundredInAnyOrderIsItsRank) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  for (int p = 1; p <= 100; ++p) EXPECT_EQ(Percentile(samples, p), p) << p;
}

// The median of an even number of samples is the mean of the two in the middle.
// The index is that of the smaller one.
TEST(MedianTest, IsTheMiddle) {
  struct Case {
    std::vector<double> samples;
    double median;
    int64_t index;
  };
  for (const Case& c :
       {Case{{3}, 3, 0}, Case{{4, 1}, 2.5, 1}, Case{{9, 1, 5}, 5, 2},
        Case{{8, 2, 100, 4}, 6, 3}, Case{{5, 5, 5}, 5, 1}}) {
    EXPECT_EQ(Median(c.samples), c.median);
    EXPECT_EQ(MedianIndex(c.samples), c.index);
  }
}

TEST(MeanTest, IsTheSumOverTheCount) {
  EXPECT_EQ(Mean(std::vector<double>{2}), 2);
  EXPECT_EQ(Mean(std::vector<double>{1, 2, 6}), 3);
}

// SplitMix64's first output for the seed 0, as its authors give it.
TEST(MixBitsTest, IsSplitMix64s) {
  EXPECT_EQ(MixBits(0x9e3779b97f4a7c15), 0xe220a8397b1dcdafu);
}

// The mean of 10,000 uniform numbers deviates by 0.006, the mean of their
// squares by 0.003. The numbers are fixed, so this fails always or never.
TEST(UniformTest, IsSpreadOverItsRangeAndDiffersByStreamAndPosition) {
  for (const uint64_t key :
       {UniformKey(0, 0), UniformKey(0, 1), UniformKey(1, 0)}) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < 10000; ++i) {
      const double x = Uniform(key, i);
      ASSERT_GE(x, -1);
      ASSERT_LT(x, 1);
      sum += x;
      squares += x * x;
    }
    EXPECT_NEAR(sum / 10000, 0, 0.03);
    EXPECT_NEAR(squares / 10000, 1.0 / 3, 0.015);
  }
  EXPECT_NE(Uniform(UniformKey(0, 0), 0), Uniform(UniformKey(0, 0), 1));
  EXPECT_NE(Uniform(UniformKey(0, 0), 0), Uniform(UniformKey(0, 1), 0));
  EXPECT_NE(Uniform(UniformKey(0, 0), 0), Uniform(UniformKey(1, 0), 0));
}

}  // namespace
}  // namespace lockstep::benchmarks
