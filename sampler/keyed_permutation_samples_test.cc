// Whether samples of KeyedPermutation's orders of 10^12 look like draws at
// random, among themselves and between keys. Each check also sees a subject
// that it must reject.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "sampler/permutation_statistics.h"

namespace lockstep {
namespace {

constexpr int64_t kTrillion = 1'000'000'000'000;
constexpr uint64_t kSeed = 2024;

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
