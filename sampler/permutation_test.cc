// RandomPermutation against PyTorch's two algorithms written out plainly.
#include "sampler/permutation.h"

#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

using permutation_internal::ShuffleByNarrowDraws;
using permutation_internal::ShuffleByWideDraws;

using ShuffleFn = void (*)(uint64_t, std::span<int32_t>);

std::vector<int32_t> Shuffled(ShuffleFn shuffle, uint64_t seed, int64_t n) {
  std::vector<int32_t> out(n, -1);
  shuffle(seed, out);
  return out;
}

std::vector<int32_t> PlainNarrow(uint64_t seed, int64_t n) {
  std::mt19937 generator(static_cast<uint32_t>(seed));
  std::vector<int32_t> out(n);
  std::iota(out.begin(), out.end(), 0);
  for (int64_t i = 0; i < n - 1; ++i) {
    std::swap(out[i], out[i + generator() % static_cast<uint64_t>(n - i)]);
  }
  return out;
}

std::vector<int32_t> PlainWide(uint64_t seed, int64_t n) {
  std::mt19937 generator(static_cast<uint32_t>(seed));
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t high = generator();
    const uint64_t draw = (high << 32) + generator();
    out.push_back(static_cast<int32_t>(i));
    std::swap(out[i], out[draw % static_cast<uint64_t>(i + 1)]);
  }
  return out;
}

// Around the block sizes (624 and 312 draws), and every small size.
std::vector<int64_t> Sizes() {
  std::vector<int64_t> sizes = {311,  312,  313,  314,  622,  623,   624,
                                625,  626,  935,  936,  937,  1247,  1248,
                                1249, 1250, 1251, 1873, 4999, 65537, 100003};
  for (int64_t n = 0; n <= 70; ++n) sizes.push_back(n);
  return sizes;
}

constexpr uint64_t kSeeds[] = {0, 1, 42, 0xffffffffu, (1ull << 40) + 7};

TEST(PermutationTest, NarrowDrawsMatchThePlainLoop) {
  for (const int64_t n : Sizes()) {
    for (const uint64_t seed : kSeeds) {
      ASSERT_EQ(Shuffled(ShuffleByNarrowDraws, seed, n), PlainNarrow(seed, n))
          << "n " << n << " seed " << seed;
    }
  }
}

TEST(PermutationTest, WideDrawsMatchThePlainLoop) {
  for (const int64_t n : Sizes()) {
    for (const uint64_t seed : kSeeds) {
      ASSERT_EQ(Shuffled(ShuffleByWideDraws, seed, n), PlainWide(seed, n))
          << "n " << n << " seed " << seed;
    }
  }
}

TEST(PermutationTest, VisitsEveryIndexOnce) {
  for (const int64_t n : Sizes()) {
    std::vector<int> visits(n, 0);
    for (const int32_t i : Shuffled(RandomPermutation, 3, n)) ++visits.at(i);
    EXPECT_EQ(visits, std::vector<int>(n, 1)) << "n " << n;
  }
}

TEST(PermutationTest, DrawsNarrowBelowTheWideSize) {
  EXPECT_EQ(Shuffled(RandomPermutation, 9, 1000),
            Shuffled(ShuffleByNarrowDraws, 9, 1000));
  EXPECT_NE(Shuffled(RandomPermutation, 9, 1000),
            Shuffled(ShuffleByWideDraws, 9, 1000));
  EXPECT_EQ(kWideDrawSize, int64_t{0xffffffff} / 20);
}

TEST(PermutationTest, OnlyTheLow32BitsOfTheSeedCount) {
  EXPECT_EQ(Shuffled(RandomPermutation, (1ull << 32) + 5, 50),
            Shuffled(RandomPermutation, 5, 50));
  EXPECT_NE(Shuffled(RandomPermutation, 6, 50),
            Shuffled(RandomPermutation, 5, 50));
}

}  // namespace
}  // namespace lockstep
