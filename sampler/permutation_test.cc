// Compares the permutations with plain loops over the standard library's
// generator. Tests that KeyedPermutation is a bijection that never changes;
// keyed_permutation_statistics_test.cc tests how random it is.
#include "sampler/permutation.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sampler/keyed_permutation.h"
#include "sampler/permutation_part.h"
#include "sampler/shard.h"

namespace lockstep {
namespace {

using permutation_internal::PartByMessages;
using permutation_internal::PartOfTable;
using permutation_internal::ShuffleByNarrowDraws;
using permutation_internal::ShuffleByWideDraws;

TEST(MersenneTwisterTest, DrawsWhatTheStandardGeneratorDraws) {
  for (const uint32_t seed : {0u, 1u, 42u, 5489u, 0x7fffffffu, 0xffffffffu}) {
    MersenneTwister twister(seed);
    std::mt19937 reference(seed);
    for (int block = 0; block < 3; ++block) {
      for (const uint32_t draw : twister.NextBlock()) {
        ASSERT_EQ(draw, reference()) << "seed " << seed;
      }
    }
  }
}

using ShuffleFn = void (*)(uint64_t, std::span<int32_t>);

std::vector<int32_t> Shuffled(ShuffleFn shuffle, uint64_t seed, int64_t n) {
  std::vector<int32_t> out(n, -1);
  shuffle(seed, out);
  return out;
}

// PyTorch's two algorithms as plain loops.
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

// Returns every small size, and sizes around the block sizes (624 and 312
// draws).
std::vector<int64_t> Sizes() {
  std::vector<int64_t> sizes = {311,  312,  313,  314,  622,  623,   624,
                                625,  626,  935,  936,  937,  1247,  1248,
                                1249, 1250, 1251, 1873, 4999, 65537, 100003};
  for (int64_t n = 0; n <= 70; ++n) sizes.push_back(n);
  return sizes;
}

constexpr uint64_t kSeeds[] = {0, 1, 42, 0xffffffffu, (1ull << 40) + 7};

// The plain loops only swap elements, so a list that equals theirs is a
// permutation. They use the low 32 bits of the seed.
TEST(PermutationTest, DrawsMatchThePlainLoops) {
  for (const int64_t n : Sizes()) {
    for (const uint64_t seed : kSeeds) {
      ASSERT_EQ(Shuffled(ShuffleByNarrowDraws, seed, n), PlainNarrow(seed, n))
          << "n " << n << " seed " << seed;
      ASSERT_EQ(Shuffled(ShuffleByWideDraws, seed, n), PlainWide(seed, n))
          << "n " << n << " seed " << seed;
    }
    // golden_test.cc shows which of the two is used at large sizes.
    ASSERT_EQ(Shuffled(RandomPermutation, 3, n), PlainNarrow(3, n)) << n;
  }
}

std::vector<int64_t> Plain(uint64_t seed, int64_t size,
                           const StridedPart& part) {
  std::vector<int32_t> all(size);
  RandomPermutation(seed, all);
  std::vector<int64_t> list;
  for (int64_t k = 0; k < part.count; ++k) list.push_back(all[part.At(k)]);
  return list;
}

// Returns the parts that a rank of `stride` ranks may have: cut, complete or
// padded.
std::vector<StridedPart> PartsOf(int64_t size, int64_t begin, int64_t first,
                                 int64_t stride) {
  std::vector<StridedPart> parts;
  const int64_t length = size - begin;
  for (const int64_t count :
       {length / stride, (length + stride - 1) / stride,
        (length - first + stride - 1) / stride, int64_t{1}}) {
    parts.push_back({.begin = begin,
                     .length = length,
                     .first = first,
                     .stride = stride,
                     .count = std::max<int64_t>(0, count)});
  }
  return parts;
}

int64_t CountOfPadding(const StridedPart& part) {
  int64_t count = 0;
  for (int64_t k = 0; k < part.count; ++k) {
    if (part.first + k * part.stride >= part.length) ++count;
  }
  return count;
}

// Blocks have 624 draws, and segments have 8 to 256 elements, so that their
// ends meet in all possible ways.
TEST(PermutationPartTest, IsWhatTheWholeHas) {
  int padded = 0;
  for (const int64_t size : {1, 2, 7, 8, 9, 31, 64, 65, 623, 624, 625, 626,
                             1248, 1249, 1250, 3000}) {
    for (const int64_t stride : {1, 2, 3, 8, 40}) {
      for (const int64_t first : {int64_t{0}, stride / 2, stride - 1}) {
        for (const int64_t begin :
             {int64_t{0}, std::min<int64_t>(5, size - 1)}) {
          for (const StridedPart& part : PartsOf(size, begin, first, stride)) {
            const std::vector<int64_t> want = Plain(17, size, part);
            EXPECT_EQ(PartOfTable(17, size, part), want);
            if (CountOfPadding(part) > 1) continue;
            padded += static_cast<int>(CountOfPadding(part));
            for (const int bits : {3, 5, 8}) {
              EXPECT_EQ(PartByMessages(17, size, part, bits), want)
                  << size << " samples, stride " << stride << ", first "
                  << first << ", begin " << begin << ", count " << part.count
                  << ", segments of 2^" << bits;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(padded, 100);  // Otherwise the hard cases are missing.
}

// The size from which PermutationPart sends messages, with its own segments.
TEST(PermutationPartTest, IsTheSameAboveAndBelowTheLimitOfTables) {
  for (const int64_t size : {(int64_t{1} << 23) - 1, (int64_t{1} << 23) + 3}) {
    const StridedPart part = {
        .length = size, .first = 99, .stride = 100, .count = size / 100 + 1};
    EXPECT_EQ(PermutationPart(5, size, part), Plain(5, size, part)) << size;
  }
}

// A resumed rank among many, with less than one sample left for each.
TEST(PermutationPartTest, WrapsAroundMoreThanOnce) {
  const int64_t size = (int64_t{1} << 23) + 3;
  const StridedPart part = {
      .begin = size - 3, .length = 3, .first = 7, .stride = 8, .count = 2};
  EXPECT_EQ(PermutationPart(5, size, part), Plain(5, size, part));
}

constexpr int64_t kTrillion = 1'000'000'000'000;

static_assert(std::is_trivially_copyable_v<KeyedPermutation>);
static_assert(sizeof(KeyedPermutation) <= 500);

using MapFn = std::function<void(std::span<int64_t>)>;

MapFn MapOf(const KeyedPermutation& permutation) {
  return [permutation](std::span<int64_t> values) { permutation.Map(values); };
}

// Returns whether the positions [first, first + count) get distinct indices in
// [0, n). With first = 0 and count = n, this is whether the map is a bijection.
bool IsInjective(const MapFn& map, int64_t n, int64_t first, int64_t count) {
  std::vector<int64_t> values(count);
  std::iota(values.begin(), values.end(), first);
  map(values);
  std::sort(values.begin(), values.end());
  return values.front() >= 0 && values.back() < n &&
         std::adjacent_find(values.begin(), values.end()) == values.end();
}

TEST(KeyedPermutationTest, IsABijectionAtEverySmallSizeAndSomeLargerOnes) {
  std::vector<int64_t> sizes(300);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.insert(sizes.end(), {1000, 4095, 4096, 4097, 65537, 1 << 20});
  for (const int64_t n : sizes) {
    for (uint64_t key = 0; key < (n <= 300 ? 8 : 2); ++key) {
      ASSERT_TRUE(
          IsInjective(MapOf(KeyedPermutation(n, key, 7 * key)), n, 0, n))
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

// Returns sizes around powers of two, primes, and the largest size.
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
    // One spare element on each side.
    std::vector<int64_t> values(length + 2, -5);
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

// Users may have trained with these indices. A second implementation, on exact
// integers, gives the same ones. If this test fails, the permutation must
// change back.
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

}  // namespace
}  // namespace lockstep
