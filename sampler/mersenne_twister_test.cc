// MersenneTwister draws what the standard library's generator draws.
#include "sampler/mersenne_twister.h"

#include <cstdint>
#include <random>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// The first position at which the two generators differ in three blocks, or -1.
int64_t FirstDifference(MersenneTwister& twister, std::mt19937& reference) {
  int64_t position = 0;
  for (int block = 0; block < 3; ++block) {
    for (const uint32_t draw : twister.NextBlock()) {
      if (draw != reference()) return position;
      ++position;
    }
  }
  return -1;
}

TEST(MersenneTwisterTest, DrawsWhatTheStandardGeneratorDraws) {
  for (const uint32_t seed : {0u, 1u, 42u, 5489u, 0x7fffffffu, 0xffffffffu}) {
    MersenneTwister twister(seed);
    std::mt19937 reference(seed);
    EXPECT_EQ(FirstDifference(twister, reference), -1) << "seed " << seed;
  }
}

TEST(MersenneTwisterTest, ComparisonRejectsAnotherSeed) {
  MersenneTwister twister(1);
  std::mt19937 reference(2);
  EXPECT_EQ(FirstDifference(twister, reference), 0);
}

// The C++ standard gives this value for the default seed.
TEST(MersenneTwisterTest, TenThousandthDrawIsTheStandards) {
  MersenneTwister twister(5489);
  for (int block = 0; block < 9999 / MersenneTwister::kBlockSize; ++block) {
    twister.NextBlock();
  }
  EXPECT_EQ(twister.NextBlock()[9999 % MersenneTwister::kBlockSize],
            4123659995u);
}

}  // namespace
}  // namespace lockstep
