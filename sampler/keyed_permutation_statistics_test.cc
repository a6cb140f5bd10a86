// Whether KeyedPermutation looks like permutations drawn at random: whole
// orders at small sizes (KeyedPermutationOrdersTest), and samples of orders of
// 10^12, among themselves and between keys (KeyedPermutationSamplesTest). Each
// check also sees a subject that it must reject and, if it is one of orders
// (but for the one of pairs), a true shuffle that it must pass.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sampler/permutation_statistics.h"

namespace lockstep {
namespace {

constexpr uint64_t kSeed = 2024;

// The whole order of one key.
std::vector<int64_t> Order(const Subject& subject, int64_t n, uint64_t epoch) {
  std::vector<int64_t> values = Positions(n);
  subject(n, kSeed, epoch, values);
  return values;
}

// All n! orders are equally likely: 30 draws an order.
double OrderScore(const Subject& subject, int64_t n) {
  int64_t orders = 1;
  for (int64_t k = 2; k <= n; ++k) orders *= k;
  std::vector<int64_t> counts(orders, 0);
  for (int64_t epoch = 0; epoch < 30 * orders; ++epoch) {
    const std::vector<int64_t> order =
        Order(subject, n, static_cast<uint64_t>(epoch));
    int64_t number = 0;  // In the factorial number system.
    for (int64_t i = 0; i < n; ++i) {
      const auto smaller = std::count_if(
          order.begin() + i, order.end(),
          [&order, i](int64_t later) { return later < order[i]; });
      number = number * (n - i) + smaller;
    }
    ++counts[number];
  }
  return UniformScore(counts);
}

// Each index is equally likely at each position. A sum of random permutation
// matrices has (n - 1)^2 free entries, of the variance of draws of n cells but
// for a factor n / (n - 1).
double PlaceScore(const Subject& subject, int64_t n) {
  std::vector<int64_t> counts(n * n, 0);
  for (uint64_t epoch = 0; epoch < 10'000; ++epoch) {
    const std::vector<int64_t> order = Order(subject, n, epoch);
    for (int64_t i = 0; i < n; ++i) ++counts[i * n + order[i]];
  }
  const auto size = static_cast<double>(n);
  return ChiSquareScore(UniformChiSquare(counts) * (size - 1) / size,
                        (size - 1) * (size - 1));
}

// All n (n - 1) pairs of indices are equally likely at two positions: 10 draws
// a pair.
double PairScore(const Subject& subject, int64_t n, int64_t second) {
  std::vector<int64_t> counts(n * (n - 1), 0);
  const int64_t draws = 10 * std::ssize(counts);
  for (int64_t epoch = 0; epoch < draws; ++epoch) {
    std::array<int64_t, 2> values = {0, second};
    subject(n, kSeed, static_cast<uint64_t>(epoch), values);
    const int64_t other = values[1] - (values[1] > values[0] ? 1 : 0);
    ++counts[values[0] * (n - 1) + other];
  }
  return UniformScore(counts);
}

// Half of the permutations are odd.
double ParityScore(const Subject& subject, int64_t n) {
  constexpr int kKeys = 4000;
  int odd = 0;
  for (uint64_t epoch = 0; epoch < kKeys; ++epoch) {
    odd += IsOdd(Order(subject, n, epoch)) ? 1 : 0;
  }
  return (odd - kKeys / 2) / std::sqrt(kKeys / 4.0);
}

// The number of fixed points: k with probability e^-1 / k!, to within 1 / n!.
double FixedPointScore(const Subject& subject, int64_t n) {
  constexpr int kKeys = 10'000;
  std::array<int64_t, 7> counts{};  // The last is of 6 or more.
  for (uint64_t epoch = 0; epoch < kKeys; ++epoch) {
    const std::vector<int64_t> order = Order(subject, n, epoch);
    int fixed = 0;
    for (int64_t i = 0; i < n; ++i) fixed += order[i] == i ? 1 : 0;
    ++counts[std::min(fixed, 6)];
  }
  std::array<double, 7> expected;
  double left = kKeys;
  double probability = std::exp(-1.0);
  for (int k = 0; k < 6; ++k) {
    expected[k] = kKeys * probability;
    left -= expected[k];
    probability /= k + 1;
  }
  expected[6] = left;
  return ChiSquareScore(ChiSquare(counts, expected), 6);
}

// The test of Patarin 2001 on the grid of side^2 = n: pairs in one column whose
// distance in rows is the same before and after. Distances survive with a
// chance of side / (n - 1), each nearly independent of the others.
double SurvivingDistanceScore(const Subject& subject, int64_t side, int keys) {
  const int64_t n = side * side;
  int64_t survived = 0;
  for (uint64_t epoch = 0; epoch < static_cast<uint64_t>(keys); ++epoch) {
    const std::vector<int64_t> order = Order(subject, n, epoch);
    for (int64_t column = 0; column < side; ++column) {
      std::vector<int64_t> moved_by(side, 0);
      for (int64_t row = 0; row < side; ++row) {
        ++moved_by[(order[row * side + column] / side - row + side) % side];
      }
      for (const int64_t same : moved_by) survived += same * (same - 1) / 2;
    }
  }
  const double pairs = static_cast<double>(n * (side - 1) / 2) * keys;
  const double chance = static_cast<double>(side) / static_cast<double>(n - 1);
  return (static_cast<double>(survived) - pairs * chance) /
         std::sqrt(pairs * chance * (1 - chance));
}

// Orders of two epochs agree at one position in the mean, with variance one.
double AgreementScore(const Subject& subject) {
  constexpr int kPairs = 2000;
  int agreed = 0;
  std::vector<int64_t> before = Order(subject, 1000, 0);
  for (uint64_t epoch = 1; epoch <= kPairs; ++epoch) {
    const std::vector<int64_t> now = Order(subject, 1000, epoch);
    for (size_t i = 0; i < now.size(); ++i) agreed += now[i] == before[i];
    before = now;
  }
  return (agreed - kPairs) / std::sqrt(kPairs);
}

TEST(KeyedPermutationOrdersTest, AllOrdersAreEquallyLikely) {
  for (int64_t n = 3; n <= 6; ++n) {
    EXPECT_LT(std::abs(OrderScore(Ours, n)), kLimit) << n;
    EXPECT_LT(std::abs(OrderScore(TrueShuffle, n)), kLimit) << n;
  }
  EXPECT_GT(std::abs(OrderScore(NaiveShuffle, 5)), kLimit);
  EXPECT_GT(std::abs(OrderScore(EvenOnly, 3)), kLimit);
  EXPECT_GT(std::abs(OrderScore(WithRounds(2), 6)), kLimit);
}

TEST(KeyedPermutationOrdersTest, EachIndexIsEquallyLikelyAtEachPosition) {
  for (const int64_t n : {11, 100}) {
    EXPECT_LT(std::abs(PlaceScore(Ours, n)), kLimit) << n;
    EXPECT_LT(std::abs(PlaceScore(TrueShuffle, n)), kLimit) << n;
    EXPECT_GT(std::abs(PlaceScore(NaiveShuffle, n)), kLimit) << n;
    EXPECT_GT(std::abs(PlaceScore(WithRounds(2), n)), kLimit) << n;
  }
}

TEST(KeyedPermutationOrdersTest, PairsOfIndicesAreEquallyLikely) {
  EXPECT_LT(std::abs(PairScore(Ours, 11, 1)), kLimit);
  EXPECT_LT(std::abs(PairScore(Ours, 72, 1)), kLimit);  // In one row.
  EXPECT_LT(std::abs(PairScore(Ours, 72, 8)), kLimit);  // In one column.
  EXPECT_GT(std::abs(PairScore(Rotation, 11, 1)), kLimit);
  EXPECT_GT(std::abs(PairScore(WithRounds(2), 72, 1)), kLimit);
  EXPECT_GT(std::abs(PairScore(WithRounds(4), 72, 8)), kLimit);
}

// 64, 72 and 256 fill their grids, so that no cycle is walked; that of 72 has 9
// rows, so that its row moves are even and all depends on its column moves.
TEST(KeyedPermutationOrdersTest, HalfOfTheOrdersAreOdd) {
  for (const int64_t n : {9, 10, 25, 49, 64, 72, 256}) {
    EXPECT_LT(std::abs(ParityScore(Ours, n)), kLimit) << n;
  }
  EXPECT_GT(std::abs(ParityScore(EvenOnly, 72)), kLimit);
  EXPECT_LT(std::abs(ParityScore(TrueShuffle, 49)), kLimit);
  EXPECT_GT(std::abs(ParityScore(NaiveShuffle, 49)), kLimit);
}

TEST(KeyedPermutationOrdersTest, FixedPointsAreAsManyAsByChance) {
  for (const int64_t n : {20, 101}) {
    EXPECT_LT(std::abs(FixedPointScore(Ours, n)), kLimit) << n;
    EXPECT_LT(std::abs(FixedPointScore(TrueShuffle, n)), kLimit) << n;
  }
  EXPECT_GT(std::abs(FixedPointScore(Affine, 101)), kLimit);
  EXPECT_GT(std::abs(FixedPointScore(WithRounds(4), 101)), kLimit);
}

// Six rounds show at every size, eight at the smallest, as theory has it.
TEST(KeyedPermutationOrdersTest, DistancesSurviveNoMoreThanByChance) {
  const std::pair<int64_t, int> cases[] = {
      {8, 4000}, {16, 2000}, {32, 1000}, {64, 400}};
  for (const auto& [side, keys] : cases) {
    SCOPED_TRACE(side);
    EXPECT_LT(std::abs(SurvivingDistanceScore(Ours, side, keys)), kLimit);
    EXPECT_LT(std::abs(SurvivingDistanceScore(TrueShuffle, side, keys)),
              kLimit);
    EXPECT_GT(SurvivingDistanceScore(WithRounds(4), side, keys), kLimit);
    EXPECT_GT(SurvivingDistanceScore(WithRounds(6), side, keys), kLimit);
  }
  EXPECT_GT(SurvivingDistanceScore(WithRounds(8), 8, 4000), kLimit);
}

TEST(KeyedPermutationOrdersTest, EpochsAgreeNoMoreThanByChance) {
  EXPECT_LT(std::abs(AgreementScore(Ours)), kLimit);
  EXPECT_LT(std::abs(AgreementScore(TrueShuffle)), kLimit);
  EXPECT_GT(AgreementScore(IgnoresEpoch), kLimit);
}

constexpr int64_t kTrillion = 1'000'000'000'000;

// 1024 bins of a trillion indices by size, and by the last ten bits.
std::vector<int64_t> HighCounts(std::span<const int64_t> values) {
  std::vector<int64_t> counts(1024, 0);
  for (const int64_t value : values) ++counts[value / (kTrillion / 1024)];
  return counts;
}
std::vector<int64_t> LowCounts(std::span<const int64_t> values) {
  std::vector<int64_t> counts(1024, 0);
  for (const int64_t value : values) ++counts[value % 1024];
  return counts;
}

// What leads from one list of indices to the other, modulo a trillion.
std::vector<int64_t> Differences(std::span<const int64_t> from,
                                 std::span<const int64_t> to) {
  std::vector<int64_t> differences;
  for (size_t i = 0; i < from.size(); ++i) {
    differences.push_back((to[i] - from[i] + kTrillion) % kTrillion);
  }
  return differences;
}

// 32 bins of the one by 32 of the other.
std::vector<int64_t> JointCounts(std::span<const int64_t> from,
                                 std::span<const int64_t> to) {
  std::vector<int64_t> counts(1024, 0);
  for (size_t i = 0; i < from.size(); ++i) {
    ++counts[from[i] / (kTrillion / 32) * 32 + to[i] / (kTrillion / 32)];
  }
  return counts;
}

// The scores of two lists that should have nothing to do with each other.
std::array<double, 3> RelationScores(std::span<const int64_t> from,
                                     std::span<const int64_t> to) {
  const std::vector<int64_t> differences = Differences(from, to);
  return {UniformScore(HighCounts(differences)),
          UniformScore(LowCounts(differences)),
          UniformScore(JointCounts(from, to))};
}

struct Key {
  int64_t n;
  uint64_t seed;
  uint64_t epoch;
};

constexpr int64_t kSample = 1 << 18;

// A sample of the indices of one key, at positions a stride apart.
std::vector<int64_t> Sample(const Subject& subject, const Key& key,
                            int64_t first, int64_t stride) {
  std::vector<int64_t> values = Positions(kSample, first, stride);
  subject(key.n, key.seed, key.epoch, values);
  return values;
}

// Each index against the one a stride on, in pairs that share no index.
std::array<double, 3> NeighbourScores(std::span<const int64_t> values) {
  std::vector<int64_t> from;
  std::vector<int64_t> to;
  for (size_t i = 0; i + 1 < values.size(); i += 2) {
    from.push_back(values[i]);
    to.push_back(values[i + 1]);
  }
  return RelationScores(from, to);
}

constexpr Key kKey = {kTrillion, kSeed, 9};

// Neighbours, one rank's part of eight, one column of the grid (which has 2^20
// of them), one diagonal, and positions from all over it.
struct Stride {
  int64_t first;
  int64_t stride;
};
constexpr Stride kStrides[] = {
    {0, 1}, {3, 8}, {7, 1 << 20}, {5, (1 << 20) + 1}, {1, 3'000'001}};

TEST(KeyedPermutationSamplesTest, BitsOfATrillionAreUniform) {
  for (const Stride& at : kStrides) {
    SCOPED_TRACE(at.stride);
    const auto values = Sample(Ours, kKey, at.first, at.stride);
    EXPECT_LT(std::abs(UniformScore(HighCounts(values))), kLimit);
    EXPECT_LT(std::abs(UniformScore(LowCounts(values))), kLimit);
  }
  const auto rotated = Sample(Rotation, kKey, 3, 8);
  EXPECT_GT(std::abs(UniformScore(HighCounts(rotated))), kLimit);
  EXPECT_GT(std::abs(UniformScore(LowCounts(rotated))), kLimit);
}

TEST(KeyedPermutationSamplesTest, NeighboursAreUnrelated) {
  for (const Stride& at : kStrides) {
    SCOPED_TRACE(at.stride);
    for (const double score :
         NeighbourScores(Sample(Ours, kKey, at.first, at.stride))) {
      EXPECT_LT(std::abs(score), kLimit);
    }
    for (const double score :
         NeighbourScores(Sample(Affine, kKey, at.first, at.stride))) {
      EXPECT_GT(std::abs(score), kLimit);
    }
  }
  const auto cut_down = Sample(WithRounds(2), kKey, 7, 1 << 20);
  EXPECT_GT(NeighbourScores(cut_down)[0], kLimit);
}

// Two keys' indices at the same positions.
std::array<double, 3> KeyRelationScores(const Subject& subject, const Key& a,
                                        const Key& b) {
  return RelationScores(Sample(subject, a, 0, 1), Sample(subject, b, 0, 1));
}

TEST(KeyedPermutationSamplesTest, SimilarKeysAreUnrelated) {
  const struct {
    Key other;
    Subject related;
  } cases[] = {
      {{kTrillion, kSeed, 10}, IgnoresEpoch},
      {{kTrillion, kSeed + 1, 9}, IgnoresSeed},
      {{kTrillion, kSeed + 1, 8}, AddsSeedAndEpoch},
      {{kTrillion, 9, kSeed}, AddsSeedAndEpoch},
      {{kTrillion - 1, kSeed, 9}, IgnoresSize},
  };
  for (const auto& [other, related] : cases) {
    SCOPED_TRACE(testing::Message()
                 << other.n << " " << other.seed << " " << other.epoch);
    for (const double score : KeyRelationScores(Ours, kKey, other)) {
      EXPECT_LT(std::abs(score), kLimit);
    }
    for (const double score : KeyRelationScores(related, kKey, other)) {
      EXPECT_GT(std::abs(score), kLimit);
    }
  }
}

// The index at one position through many keys that count up.
std::vector<int64_t> KeySeries(const Subject& subject, bool by_seed) {
  std::vector<int64_t> values(1 << 17, 0);
  for (size_t k = 0; k < values.size(); ++k) {
    subject(kTrillion, by_seed ? k : kSeed, by_seed ? kSeed : k,
            std::span(values).subspan(k, 1));
  }
  return values;
}

TEST(KeyedPermutationSamplesTest, CountingKeysDrawUniformly) {
  for (const bool by_seed : {false, true}) {
    SCOPED_TRACE(by_seed);
    const std::vector<int64_t> values = KeySeries(Ours, by_seed);
    EXPECT_LT(std::abs(UniformScore(HighCounts(values))), kLimit);
    EXPECT_LT(std::abs(UniformScore(LowCounts(values))), kLimit);
    for (const double score : NeighbourScores(values)) {
      EXPECT_LT(std::abs(score), kLimit);
    }
    const std::vector<int64_t> constant =
        KeySeries(by_seed ? IgnoresSeed : IgnoresEpoch, by_seed);
    EXPECT_GT(UniformScore(HighCounts(constant)), kLimit);
    EXPECT_GT(UniformScore(LowCounts(constant)), kLimit);
    EXPECT_GT(NeighbourScores(constant)[0], kLimit);
  }
}

}  // namespace
}  // namespace lockstep
