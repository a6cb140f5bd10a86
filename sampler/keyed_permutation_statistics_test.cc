// Tests whether KeyedPermutation looks like permutations drawn at random.
// KeyedPermutationOrdersTest takes whole orders at small sizes.
// KeyedPermutationSamplesTest takes samples of orders of 10^12, within one key
// and between keys. Each check also gets a subject that it must reject. Each
// check of orders, except the one of pairs, also gets a true shuffle that it
// must pass.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sampler/keyed_permutation.h"

namespace lockstep {
namespace {

// Each check returns a standard score, which for random permutations is close
// to a normal deviate. A check fails beyond kLimit. P(|z| > kLimit) = 10^-6 for
// a normal z, so a check would fail for one in a million random keys. The
// tests' keys are fixed, so a test passes always or never.
constexpr double kLimit = 4.892;

// A NaN neither passes nor fails.
bool Passes(double score) { return std::abs(score) <= kLimit; }
bool Fails(double score) { return std::abs(score) > kLimit; }
int CountPassing(std::span<const double> scores) {
  return static_cast<int>(std::count_if(scores.begin(), scores.end(), Passes));
}
int CountFailing(std::span<const double> scores) {
  return static_cast<int>(std::count_if(scores.begin(), scores.end(), Fails));
}

struct Key {
  int64_t n;
  uint64_t seed;
  uint64_t epoch;
};

// A subject replaces positions in [0, n) by the indices that it has for the
// key.
using Subject = std::function<void(const Key& key, std::span<int64_t> values)>;

// Returns the standard score of a chi-square value (Wilson & Hilferty 1931).
// From 5 degrees of freedom on, the exact tails beyond kLimit are smaller than
// the normal ones: 0.43 times at 5 degrees, 0.99 at 1023.
double ChiSquareScore(double chi_square, double degrees) {
  const double variance = 2 / (9 * degrees);
  return (std::cbrt(chi_square / degrees) - (1 - variance)) /
         std::sqrt(variance);
}

// Returns Pearson's sum of (count - expected)^2 / expected.
double ChiSquare(std::span<const int64_t> counts,
                 std::span<const double> expected) {
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double difference = static_cast<double>(counts[i]) - expected[i];
    sum += difference * difference / expected[i];
  }
  return sum;
}

// Returns ChiSquare for cells that all expect the same count.
double UniformChiSquare(std::span<const int64_t> counts) {
  const double total = static_cast<double>(
      std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const auto cells = static_cast<double>(counts.size());
  return ChiSquare(counts, std::vector<double>(counts.size(), total / cells));
}

// Returns the score of counts of independent draws, uniform over the cells.
double UniformScore(std::span<const int64_t> counts) {
  return ChiSquareScore(UniformChiSquare(counts),
                        static_cast<double>(counts.size()) - 1);
}

// Returns first, first + stride, ...
std::vector<int64_t> Positions(int64_t count, int64_t first = 0,
                               int64_t stride = 1) {
  std::vector<int64_t> positions(count);
  for (int64_t k = 0; k < count; ++k) positions[k] = first + k * stride;
  return positions;
}

void Ours(const Key& key, std::span<int64_t> values) {
  KeyedPermutation(key.n, key.seed, key.epoch).Map(values);
}

// Returns KeyedPermutation cut down to its first `rounds` rounds.
Subject WithRounds(int rounds) {
  return [rounds](const Key& key, std::span<int64_t> values) {
    keyed_permutation_internal::WithRounds(key.n, key.seed, key.epoch, rounds)
        .Map(values);
  };
}

std::mt19937_64 GeneratorOf(const Key& key) {
  return std::mt19937_64(key.seed + (key.epoch << 32));
}

// TrueShuffle, NaiveShuffle and EvenOnly get all n positions, in order.
//
// Shuffles as Fisher and Yates do, from a Mersenne Twister.
void TrueShuffle(const Key& key, std::span<int64_t> values) {
  std::mt19937_64 generator = GeneratorOf(key);
  for (int64_t i = std::ssize(values) - 1; i > 0; --i) {
    std::swap(values[i], values[generator() % static_cast<uint64_t>(i + 1)]);
  }
}

// Shuffles with the well-known mistake: each element is swapped with any of the
// n elements.
void NaiveShuffle(const Key& key, std::span<int64_t> values) {
  std::mt19937_64 generator = GeneratorOf(key);
  for (int64_t& value : values) {
    std::swap(value, values[generator() % static_cast<uint64_t>(key.n)]);
  }
}

// Maps position x to factor * x + shift modulo n, with a factor coprime to n.
void Affine(const Key& key, std::span<int64_t> values) {
  __extension__ using Int128 = __int128;
  std::mt19937_64 generator = GeneratorOf(key);
  const auto draw = [&] {
    return static_cast<int64_t>(generator() % static_cast<uint64_t>(key.n));
  };
  int64_t factor = draw();
  while (std::gcd(factor, key.n) != 1) factor = draw();
  const int64_t shift = draw();
  for (int64_t& value : values) {
    value = static_cast<int64_t>((Int128{value} * factor + shift) % key.n);
  }
}

// Maps position x to x + shift modulo n.
void Rotation(const Key& key, std::span<int64_t> values) {
  const int64_t shift = KeyedPermutation(key.n, key.seed, key.epoch)(0);
  for (int64_t& value : values) value = (value + shift) % key.n;
}

// KeyedPermutation with part of the key ignored.
void IgnoresEpoch(const Key& key, std::span<int64_t> values) {
  Ours({key.n, key.seed, 0}, values);
}
void IgnoresSeed(const Key& key, std::span<int64_t> values) {
  Ours({key.n, 0, key.epoch}, values);
}

// KeyedPermutation seeded with seed + epoch, as in PyTorch's samplers.
void AddsSeedAndEpoch(const Key& key, std::span<int64_t> values) {
  Ours({key.n, key.seed + key.epoch, 0}, values);
}

// Uses one order for all sizes up to 2^40, reduced modulo n, as a key without n
// would.
void IgnoresSize(const Key& key, std::span<int64_t> values) {
  Ours({int64_t{1} << 40, key.seed, key.epoch}, values);
  for (int64_t& value : values) value %= key.n;
}

// Returns whether `permutation`, of [0, its size), is odd.
bool IsOdd(std::span<const int64_t> permutation) {
  std::vector<bool> seen(permutation.size());
  bool odd = false;
  for (size_t start = 0; start < seen.size(); ++start) {
    for (size_t i = start; !seen[i]; i = permutation[i]) {
      seen[i] = true;
      if (static_cast<size_t>(permutation[i]) != start) odd = !odd;
    }
  }
  return odd;
}

// Gives only even permutations, like a network that uses XOR or whose sides are
// both odd.
void EvenOnly(const Key& key, std::span<int64_t> values) {
  Ours(key, values);
  if (IsOdd(values)) std::swap(values[0], values[1]);
}

constexpr uint64_t kSeed = 2024;

// Returns the whole order of one key.
std::vector<int64_t> Order(const Subject& subject, int64_t n, uint64_t epoch) {
  std::vector<int64_t> values = Positions(n);
  subject({n, kSeed, epoch}, values);
  return values;
}

// Scores whether all n! orders are equally likely, with 30 draws for each
// order.
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

// Scores whether each index is equally likely at each position. A sum of random
// permutation matrices has (n - 1)^2 free entries. Their variance is that of
// draws from n cells, times n / (n - 1).
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

// Scores whether all n (n - 1) pairs of indices are equally likely at two
// positions, with 10 draws for each pair.
double PairScore(const Subject& subject, int64_t n, int64_t second) {
  std::vector<int64_t> counts(n * (n - 1), 0);
  const int64_t draws = 10 * std::ssize(counts);
  for (int64_t epoch = 0; epoch < draws; ++epoch) {
    std::array<int64_t, 2> values = {0, second};
    subject({n, kSeed, static_cast<uint64_t>(epoch)}, values);
    const int64_t other = values[1] - (values[1] > values[0] ? 1 : 0);
    ++counts[values[0] * (n - 1) + other];
  }
  return UniformScore(counts);
}

// Scores whether half of the permutations are odd.
double ParityScore(const Subject& subject, int64_t n) {
  constexpr int kKeys = 4000;
  int odd = 0;
  for (uint64_t epoch = 0; epoch < kKeys; ++epoch) {
    odd += IsOdd(Order(subject, n, epoch)) ? 1 : 0;
  }
  return (odd - kKeys / 2) / std::sqrt(kKeys / 4.0);
}

// Scores the number of fixed points: it is k with probability e^-1 / k!, to
// within 1 / n!.
double FixedPointScore(const Subject& subject, int64_t n) {
  constexpr int kKeys = 10'000;
  std::array<int64_t, 7> counts{};  // The last counts 6 or more.
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

// Scores by the test of Patarin 2001, on the grid of side^2 = n. It counts
// pairs in one column whose distance in rows is the same before and after. A
// distance survives with probability side / (n - 1), nearly independently of
// the others.
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

// Scores the positions at which the orders of two epochs agree. Their number
// has mean one and variance one.
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
    EXPECT_TRUE(Passes(OrderScore(Ours, n))) << n;
    EXPECT_TRUE(Passes(OrderScore(TrueShuffle, n))) << n;
  }
  EXPECT_TRUE(Fails(OrderScore(NaiveShuffle, 5)));
  EXPECT_TRUE(Fails(OrderScore(EvenOnly, 3)));
  EXPECT_TRUE(Fails(OrderScore(WithRounds(2), 6)));
}

TEST(KeyedPermutationOrdersTest, EachIndexIsEquallyLikelyAtEachPosition) {
  for (const int64_t n : {11, 100}) {
    EXPECT_TRUE(Passes(PlaceScore(Ours, n))) << n;
    EXPECT_TRUE(Passes(PlaceScore(TrueShuffle, n))) << n;
    EXPECT_TRUE(Fails(PlaceScore(NaiveShuffle, n))) << n;
    EXPECT_TRUE(Fails(PlaceScore(WithRounds(2), n))) << n;
  }
}

TEST(KeyedPermutationOrdersTest, PairsOfIndicesAreEquallyLikely) {
  EXPECT_TRUE(Passes(PairScore(Ours, 11, 1)));
  EXPECT_TRUE(Passes(PairScore(Ours, 72, 1)));  // In one row.
  EXPECT_TRUE(Passes(PairScore(Ours, 72, 8)));  // In one column.
  EXPECT_TRUE(Fails(PairScore(Rotation, 11, 1)));
  EXPECT_TRUE(Fails(PairScore(WithRounds(2), 72, 1)));
  EXPECT_TRUE(Fails(PairScore(WithRounds(4), 72, 8)));
}

// 64, 72 and 256 fill their grids, so no cycle is walked. The grid of 72 has 9
// rows, so its row moves are even, and the parity depends only on its column
// moves.
TEST(KeyedPermutationOrdersTest, HalfOfTheOrdersAreOdd) {
  for (const int64_t n : {9, 10, 25, 49, 64, 72, 256}) {
    EXPECT_TRUE(Passes(ParityScore(Ours, n))) << n;
  }
  EXPECT_TRUE(Fails(ParityScore(EvenOnly, 72)));
  EXPECT_TRUE(Passes(ParityScore(TrueShuffle, 49)));
  EXPECT_TRUE(Fails(ParityScore(NaiveShuffle, 49)));
}

TEST(KeyedPermutationOrdersTest, FixedPointsAreAsManyAsByChance) {
  for (const int64_t n : {20, 101}) {
    EXPECT_TRUE(Passes(FixedPointScore(Ours, n))) << n;
    EXPECT_TRUE(Passes(FixedPointScore(TrueShuffle, n))) << n;
  }
  EXPECT_TRUE(Fails(FixedPointScore(Affine, 101)));
  EXPECT_TRUE(Fails(FixedPointScore(WithRounds(4), 101)));
}

// The theory predicts that six rounds are detected at every size, and eight at
// the smallest.
TEST(KeyedPermutationOrdersTest, DistancesSurviveNoMoreThanByChance) {
  const std::pair<int64_t, int> cases[] = {
      {8, 4000}, {16, 2000}, {32, 1000}, {64, 400}};
  for (const auto& [side, keys] : cases) {
    SCOPED_TRACE(side);
    EXPECT_TRUE(Passes(SurvivingDistanceScore(Ours, side, keys)));
    EXPECT_TRUE(Passes(SurvivingDistanceScore(TrueShuffle, side, keys)));
    EXPECT_GT(SurvivingDistanceScore(WithRounds(4), side, keys), kLimit);
    EXPECT_GT(SurvivingDistanceScore(WithRounds(6), side, keys), kLimit);
  }
  EXPECT_GT(SurvivingDistanceScore(WithRounds(8), 8, 4000), kLimit);
}

TEST(KeyedPermutationOrdersTest, EpochsAgreeNoMoreThanByChance) {
  EXPECT_TRUE(Passes(AgreementScore(Ours)));
  EXPECT_TRUE(Passes(AgreementScore(TrueShuffle)));
  EXPECT_GT(AgreementScore(IgnoresEpoch), kLimit);
}

constexpr int64_t kTrillion = 1'000'000'000'000;

// Scores 1024 bins of a trillion indices, once by size and once by the last ten
// bits.
std::array<double, 2> BinScores(std::span<const int64_t> values) {
  std::vector<int64_t> high(1024, 0);
  std::vector<int64_t> low(1024, 0);
  for (const int64_t value : values) {
    ++high[value / (kTrillion / 1024)];
    ++low[value % 1024];
  }
  return {UniformScore(high), UniformScore(low)};
}

// Scores whether two lists are unrelated: two scores of the differences modulo
// a trillion, and one of 32 bins of one list by 32 bins of the other.
std::array<double, 3> RelationScores(std::span<const int64_t> from,
                                     std::span<const int64_t> to) {
  std::vector<int64_t> differences;
  std::vector<int64_t> joint(1024, 0);
  for (size_t i = 0; i < from.size(); ++i) {
    differences.push_back((to[i] - from[i] + kTrillion) % kTrillion);
    ++joint[from[i] / (kTrillion / 32) * 32 + to[i] / (kTrillion / 32)];
  }
  const auto [high, low] = BinScores(differences);
  return {high, low, UniformScore(joint)};
}

constexpr int64_t kSample = 1 << 18;

// Returns a sample of the indices of one key, at positions that are a stride
// apart.
std::vector<int64_t> Sample(const Subject& subject, const Key& key,
                            int64_t first, int64_t stride) {
  std::vector<int64_t> values = Positions(kSample, first, stride);
  subject(key, values);
  return values;
}

// Relates each index to the next one in the sample, in pairs that share no
// index.
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

// The first position and the stride: neighbours, one rank's part of eight, one
// column of the grid (which has 2^20 columns), one diagonal, and positions from
// the whole grid.
constexpr std::pair<int64_t, int64_t> kStrides[] = {
    {0, 1}, {3, 8}, {7, 1 << 20}, {5, (1 << 20) + 1}, {1, 3'000'001}};

TEST(KeyedPermutationSamplesTest, BitsOfATrillionAreUniform) {
  for (const auto& [first, stride] : kStrides) {
    SCOPED_TRACE(stride);
    EXPECT_EQ(CountPassing(BinScores(Sample(Ours, kKey, first, stride))), 2);
  }
  EXPECT_EQ(CountFailing(BinScores(Sample(Rotation, kKey, 3, 8))), 2);
}

TEST(KeyedPermutationSamplesTest, NeighboursAreUnrelated) {
  for (const auto& [first, stride] : kStrides) {
    SCOPED_TRACE(stride);
    EXPECT_EQ(CountPassing(NeighbourScores(Sample(Ours, kKey, first, stride))),
              3);
    EXPECT_EQ(
        CountFailing(NeighbourScores(Sample(Affine, kKey, first, stride))), 3);
  }
  const auto cut_down = Sample(WithRounds(2), kKey, 7, 1 << 20);
  EXPECT_GT(NeighbourScores(cut_down)[0], kLimit);
}

// Relates the indices of two keys at the same positions.
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
    EXPECT_EQ(CountPassing(KeyRelationScores(Ours, kKey, other)), 3);
    EXPECT_EQ(CountFailing(KeyRelationScores(related, kKey, other)), 3);
  }
}

// Returns the index at one position for many keys that count up.
std::vector<int64_t> KeySeries(const Subject& subject, bool by_seed) {
  std::vector<int64_t> values(1 << 17, 0);
  for (size_t k = 0; k < values.size(); ++k) {
    subject({kTrillion, by_seed ? k : kSeed, by_seed ? kSeed : k},
            std::span(values).subspan(k, 1));
  }
  return values;
}

TEST(KeyedPermutationSamplesTest, CountingKeysDrawUniformly) {
  for (const bool by_seed : {false, true}) {
    SCOPED_TRACE(by_seed);
    const std::vector<int64_t> values = KeySeries(Ours, by_seed);
    EXPECT_EQ(CountPassing(BinScores(values)), 2);
    EXPECT_EQ(CountPassing(NeighbourScores(values)), 3);
    const std::vector<int64_t> constant =
        KeySeries(by_seed ? IgnoresSeed : IgnoresEpoch, by_seed);
    for (const double score : BinScores(constant)) EXPECT_GT(score, kLimit);
    EXPECT_GT(NeighbourScores(constant)[0], kLimit);
  }
}

}  // namespace
}  // namespace lockstep
