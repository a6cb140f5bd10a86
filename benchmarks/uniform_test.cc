// The same numbers everywhere, and spread as they should be.
#include "benchmarks/uniform.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// SplitMix64's first output for the seed 0, as its authors give it.
TEST(MixBitsTest, IsSplitMix64s) {
  EXPECT_EQ(MixBits(0x9e3779b97f4a7c15), 0xe220a8397b1dcdafu);
}

// The mean of 10,000 uniform numbers deviates by 0.006, that of their squares
// by 0.003; the numbers are fixed, so this fails always or never.
TEST(UniformTest, IsSpreadOverItsRange) {
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
}

TEST(UniformTest, DiffersByStreamAndPosition) {
  EXPECT_NE(Uniform(UniformKey(0, 0), 0), Uniform(UniformKey(0, 0), 1));
  EXPECT_NE(Uniform(UniformKey(0, 0), 0), Uniform(UniformKey(0, 1), 0));
  EXPECT_NE(Uniform(UniformKey(0, 0), 0), Uniform(UniformKey(1, 0), 0));
}

}  // namespace
}  // namespace lockstep
