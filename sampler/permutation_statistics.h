// For the statistical tests of KeyedPermutation: standard scores, and subjects
// of which some are what a shuffle should be and others must be rejected.
#ifndef LOCKSTEP_SAMPLER_PERMUTATION_STATISTICS_H_
#define LOCKSTEP_SAMPLER_PERMUTATION_STATISTICS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace lockstep {

// Checks give a standard score: for random permutations a normal deviate, to a
// good approximation. They fail beyond kLimit, where P(|z| > kLimit) = 10^-6
// for a normal z: so often would a check fail for random keys. The tests' keys
// are fixed, so a test passes always or never.
inline constexpr double kLimit = 4.892;

// The standard score of a chi-square value (Wilson & Hilferty 1931). From 5
// degrees of freedom on, the exact tails beyond kLimit are smaller than the
// normal ones: 0.43 times at 5 degrees, 0.99 at 1023.
double ChiSquareScore(double chi_square, double degrees);

// Pearson's sum of (count - expected)^2 / expected.
double ChiSquare(std::span<const int64_t> counts,
                 std::span<const double> expected);

// ChiSquare where all cells expect the same.
double UniformChiSquare(std::span<const int64_t> counts);

// The score of counts of independent draws, uniform over the cells.
double UniformScore(std::span<const int64_t> counts);

// Whether `permutation`, of [0, its size), is odd.
bool IsOdd(std::span<const int64_t> permutation);

// first, first + stride, ...
std::vector<int64_t> Positions(int64_t count, int64_t first = 0,
                               int64_t stride = 1);

// Replaces positions in [0, n) by the indices that the key puts there.
using Subject = std::function<void(int64_t n, uint64_t seed, uint64_t epoch,
                                   std::span<int64_t> values)>;

// KeyedPermutation.
void Ours(int64_t n, uint64_t seed, uint64_t epoch, std::span<int64_t> values);

// KeyedPermutation cut down to so many rounds.
Subject WithRounds(int rounds);

// What the following three are given is all n positions, in order.

// Fisher and Yates', from a Mersenne Twister.
void TrueShuffle(int64_t n, uint64_t seed, uint64_t epoch,
                 std::span<int64_t> values);

// The well-known mistake: each element changes places with any of the n.
void NaiveShuffle(int64_t n, uint64_t seed, uint64_t epoch,
                  std::span<int64_t> values);

// Even permutations alone: what a network that XORs, or whose sides are both
// odd, would give.
void EvenOnly(int64_t n, uint64_t seed, uint64_t epoch,
              std::span<int64_t> values);

// Position x to factor * x + shift modulo n, the factor coprime to n.
void Affine(int64_t n, uint64_t seed, uint64_t epoch,
            std::span<int64_t> values);

// Position x to x + shift modulo n.
void Rotation(int64_t n, uint64_t seed, uint64_t epoch,
              std::span<int64_t> values);

// KeyedPermutation with part of the key left out.
void IgnoresEpoch(int64_t n, uint64_t seed, uint64_t epoch,
                  std::span<int64_t> values);
void IgnoresSeed(int64_t n, uint64_t seed, uint64_t epoch,
                 std::span<int64_t> values);

// KeyedPermutation seeded with seed + epoch, as PyTorch's samplers are.
void AddsSeedAndEpoch(int64_t n, uint64_t seed, uint64_t epoch,
                      std::span<int64_t> values);

// One order for all sizes up to 2^40, cut to n: what comes of a key without n.
void IgnoresSize(int64_t n, uint64_t seed, uint64_t epoch,
                 std::span<int64_t> values);

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_PERMUTATION_STATISTICS_H_
