// KeyedPermutation is a bijection of any size, and never changes. How random it
// is: keyed_permutation_orders_test.cc,
// keyed_permutation_samples_test.cc.
#include "sampler/keyed_permutation.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int64_t kTrillion = 1'000'000'000'000;

static_assert(std::is_trivially_copyable_v<KeyedPermutation>);
static_assert(sizeof(KeyedPermutation) <= 500);

using MapFn = std::function<void(std::span<int64_t>)>;

MapFn MapOf(const KeyedPermutation& permutation) {
  return [permutation](std::span<int64_t> values) { permutation.Map(values); };
}

// Whether the positions [first, first + count) get distinct indices in [0, n);
// with first = 0 and count = n, whether this is a bijection.
bool IsInjective(const MapFn& map, int64_t n, int64_t first, int64_t count) {
  std::vector<int64_t> values(count);
  std::iota(values.begin(), values.end(), first);
  map(values);
  std::sort(values.begin(), values.end());
  return values.front() >= 0 && values.back() < n &&
         std::adjacent_find(values.begin(), values.end()) == values.end();
}

TEST(KeyedPermutationTest, IsABijectionAtEverySmallSize) {
  for (int64_t n = 1; n <= 300; ++n) {
    for (uint64_t key = 0; key < 8; ++key) {
      ASSERT_TRUE(
          IsInjective(MapOf(KeyedPermutation(n, key, 7 * key)), n, 0, n))
          << "n " << n << " key " << key;
    }
  }
}

TEST(KeyedPermutationTest, IsABijectionAtLargerSizes) {
  for (const int64_t n : {1000, 4095, 4096, 4097, 65537, 1 << 20}) {
    for (uint64_t key = 0; key < 2; ++key) {
      ASSERT_TRUE(IsInjective(MapOf(KeyedPermutation(n, key, key)), n, 0, n))
          << "n " << n << " key " << key;
    }
  }
}

TEST(KeyedPermutationTest, BijectionCheckRejectsOneWrongIndex) {
  const KeyedPermutation permutation(1000, 1, 1);
  const auto with_last = [&permutation](int64_t last) {
    return [&permutation, last](std::span<int64_t> values) {
      permutation.Map(values);
      values.back() = last;
    };
  };
  EXPECT_TRUE(IsInjective(with_last(permutation(999)), 1000, 0, 1000));
  EXPECT_FALSE(IsInjective(with_last(permutation(5)), 1000, 0, 1000));
  EXPECT_FALSE(IsInjective(with_last(1000), 1000, 0, 1000));
  EXPECT_FALSE(IsInjective(with_last(-1), 1000, 0, 1000));
}

// Sizes around powers of two, primes, and the largest.
std::vector<int64_t> HugeSizes() {
  return {(int64_t{1} << 31) - 1,  // Prime.
          (int64_t{1} << 40) - 1,
          int64_t{1} << 40,
          (int64_t{1} << 40) + 1,
          kTrillion,
          1'000'000'000'039,       // Prime.
          (int64_t{1} << 61) - 1,  // Prime.
          KeyedPermutation::kMaxSize - 1,
          KeyedPermutation::kMaxSize};
}

TEST(KeyedPermutationTest, HasNoCollisionsAtHugeSizes) {
  constexpr int64_t kSample = 1'000'000;
  uint64_t key = 0;
  for (const int64_t n : HugeSizes()) {
    const int64_t first = key % 2 == 0 ? 0 : n - kSample;
    EXPECT_TRUE(
        IsInjective(MapOf(KeyedPermutation(n, key, 4)), n, first, kSample))
        << n;
    ++key;
  }
}

TEST(KeyedPermutationTest, OneIndexAloneIsTheSame) {
  std::vector<int64_t> sizes = HugeSizes();
  sizes.insert(sizes.end(), {1, 2, 3, 63, 64, 65, 1000, 65537});
  for (const int64_t n : sizes) {
    const KeyedPermutation permutation(n, 11, 12);
    EXPECT_EQ(permutation.size(), n);
    std::vector<int64_t> positions;
    for (int64_t k = 0; k < 1000; ++k) positions.push_back(n / 1001 * k % n);
    positions.push_back(n - 1);
    std::vector<int64_t> mapped = positions;
    permutation.Map(mapped);
    for (size_t k = 0; k < positions.size(); ++k) {
      ASSERT_EQ(mapped[k], permutation(positions[k])) << n << " " << k;
    }
  }
}

TEST(KeyedPermutationTest, MapsSpansOfEveryLength) {
  const KeyedPermutation permutation(kTrillion, 1, 2);
  for (int64_t length = 0; length <= 200; ++length) {
    std::vector<int64_t> values(length + 2, -5);  // One on each side to spare.
    std::iota(values.begin() + 1, values.end() - 1, 1000);
    permutation.Map(std::span(values).subspan(1, length));
    ASSERT_EQ(values.front(), -5);
    ASSERT_EQ(values.back(), -5);
    for (int64_t k = 0; k < length; ++k) {
      ASSERT_EQ(values[k + 1], permutation(1000 + k)) << length << " " << k;
    }
  }
}

TEST(KeyedPermutationTest, RoundsGrowAsTheSizeShrinks) {
  using keyed_permutation_internal::Rounds;
  EXPECT_EQ(Rounds(1), 26);
  EXPECT_EQ(Rounds(127), 26);
  EXPECT_EQ(Rounds(1000), 18);
  EXPECT_EQ(Rounds(1'000'000), 12);
  EXPECT_EQ(Rounds((int64_t{1} << 31) - 1), 10);
  EXPECT_EQ(Rounds(int64_t{1} << 31), 8);
  EXPECT_EQ(Rounds(kTrillion), 8);
  EXPECT_EQ(Rounds(KeyedPermutation::kMaxSize), 8);
}

struct Pinned {
  int64_t n;
  uint64_t seed;
  uint64_t epoch;
  int64_t position;
  int64_t index;
};

// Indices that somebody has trained with, as a second implementation, on exact
// integers, has them too. If this fails, the permutation must change back.
TEST(KeyedPermutationTest, NeverChanges) {
  constexpr uint64_t kLast = ~uint64_t{0};
  const Pinned pins[] = {
      {11, 0, 0, 0, 9},
      {11, 0, 0, 10, 10},
      {64, 1, 2, 63, 63},
      {1000, 42, 7, 500, 863},
      {50'000, 0, 90, 49'999, 19'571},
      {1'281'167, 0, 0, 0, 842'207},
      {1'281'167, 0, 1, 0, 175'354},
      {1'281'167, 1, 0, 0, 604'176},
      {1'000'000'000, 3, 4, 123'456'789, 736'865'169},
      {kTrillion, 0, 0, 0, 143'871'032'895},
      {kTrillion, 0, 0, 1, 309'159'403'959},
      {kTrillion, kLast, kLast, 999'999'999'999, 409'591'191'932},
      {(int64_t{1} << 61) - 1, 8, 9, 12'345, 1'955'642'745'862'834'948},
      {int64_t{1} << 62, 5, 6, (int64_t{1} << 61) + 1,
       1'923'573'234'123'326'278},
      {int64_t{1} << 62, 5, 6, (int64_t{1} << 62) - 1,
       1'063'309'441'920'353'280},
  };
  for (const Pinned& pin : pins) {
    EXPECT_EQ(KeyedPermutation(pin.n, pin.seed, pin.epoch)(pin.position),
              pin.index)
        << pin.n << " " << pin.seed << " " << pin.epoch << " " << pin.position;
  }
}

TEST(KeyedPermutationTest, ACopyIsTheSameOrder) {
  const KeyedPermutation original(1000, 5, 6);
  KeyedPermutation copy(10, 1, 1);
  copy = original;
  EXPECT_EQ(copy.size(), 1000);
  for (int64_t k = 0; k < 1000; ++k) ASSERT_EQ(copy(k), original(k));
}

}  // namespace
}  // namespace lockstep
