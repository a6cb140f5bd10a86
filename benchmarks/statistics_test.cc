// Order statistics against values worked out by hand.
#include "benchmarks/statistics.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(PercentileTest, IsTheNearestRank) {
  const std::vector<double> samples = {15, 20, 35, 40, 50};
  EXPECT_EQ(Percentile(samples, 0), 15);
  EXPECT_EQ(Percentile(samples, 5), 15);    // ceil(0.25) = 1st.
  EXPECT_EQ(Percentile(samples, 20), 15);   // ceil(1.0) = 1st.
  EXPECT_EQ(Percentile(samples, 30), 20);   // ceil(1.5) = 2nd.
  EXPECT_EQ(Percentile(samples, 40), 20);   // ceil(2.0) = 2nd.
  EXPECT_EQ(Percentile(samples, 50), 35);   // ceil(2.5) = 3rd.
  EXPECT_EQ(Percentile(samples, 99), 50);   // ceil(4.95) = 5th.
  EXPECT_EQ(Percentile(samples, 100), 50);  // 5th.
}

TEST(PercentileTest, OfOneToHundredIsItsRank) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  for (int p = 1; p <= 100; ++p) EXPECT_EQ(Percentile(samples, p), p) << p;
}

TEST(PercentileTest, DoesNotDependOnTheOrder) {
  std::vector<double> samples = {1, 2, 3, 4};
  do {
    EXPECT_EQ(Percentile(samples, 50), 2);
    EXPECT_EQ(Percentile(samples, 75), 3);
    EXPECT_EQ(Percentile(samples, 76), 4);
  } while (std::next_permutation(samples.begin(), samples.end()));
}

TEST(PercentileTest, OfOneSampleIsThatSample) {
  const std::vector<double> samples = {7};
  for (const double p : {0.0, 1.0, 50.0, 99.0, 100.0}) {
    EXPECT_EQ(Percentile(samples, p), 7) << p;
  }
}

TEST(MedianTest, IsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(Median(std::vector<double>{3}), 3);
  EXPECT_EQ(Median(std::vector<double>{4, 1}), 2.5);
  EXPECT_EQ(Median(std::vector<double>{9, 1, 5}), 5);
  EXPECT_EQ(Median(std::vector<double>{8, 2, 100, 4}), 6);
}

TEST(MedianIndexTest, IsTheMiddleOrTheSmallerOfTheMiddleTwo) {
  EXPECT_EQ(MedianIndex(std::vector<double>{3}), 0);
  EXPECT_EQ(MedianIndex(std::vector<double>{4, 1}), 1);
  EXPECT_EQ(MedianIndex(std::vector<double>{9, 1, 5}), 2);
  EXPECT_EQ(MedianIndex(std::vector<double>{8, 2, 100, 4}), 3);
  EXPECT_EQ(MedianIndex(std::vector<double>{5, 5, 5}), 1);
}

TEST(MeanTest, IsTheSumOverTheCount) {
  EXPECT_EQ(Mean(std::vector<double>{2}), 2);
  EXPECT_EQ(Mean(std::vector<double>{1, 2, 6}), 3);
}

}  // namespace
}  // namespace lockstep
