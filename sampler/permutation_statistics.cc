// Standard scores by Wilson and Hilferty, and the subjects of the tests.
#include "sampler/permutation_statistics.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "sampler/keyed_permutation.h"

namespace lockstep {
namespace {

int64_t MultiplyModulo(int64_t x, int64_t y, int64_t n) {
  __extension__ using Int128 = __int128;
  return static_cast<int64_t>(Int128{x} * y % n);
}

}  // namespace

double ChiSquareScore(double chi_square, double degrees) {
  const double variance = 2 / (9 * degrees);
  return (std::cbrt(chi_square / degrees) - (1 - variance)) /
         std::sqrt(variance);
}

double ChiSquare(std::span<const int64_t> counts,
                 std::span<const double> expected) {
  double sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double difference = static_cast<double>(counts[i]) - expected[i];
    sum += difference * difference / expected[i];
  }
  return sum;
}

double UniformChiSquare(std::span<const int64_t> counts) {
  const double total = static_cast<double>(
      std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const auto cells = static_cast<double>(counts.size());
  return ChiSquare(counts, std::vector<double>(counts.size(), total / cells));
}

double UniformScore(std::span<const int64_t> counts) {
  return ChiSquareScore(UniformChiSquare(counts),
                        static_cast<double>(counts.size()) - 1);
}

std::vector<int64_t> Positions(int64_t count, int64_t first, int64_t stride) {
  std::vector<int64_t> positions(count);
  for (int64_t k = 0; k < count; ++k) positions[k] = first + k * stride;
  return positions;
}

void Ours(int64_t n, uint64_t seed, uint64_t epoch, std::span<int64_t> values) {
  KeyedPermutation(n, seed, epoch).Map(values);
}

Subject WithRounds(int rounds) {
  return [rounds](int64_t n, uint64_t seed, uint64_t epoch,
                  std::span<int64_t> values) {
    keyed_permutation_internal::WithRounds(n, seed, epoch, rounds).Map(values);
  };
}

void TrueShuffle(int64_t, uint64_t seed, uint64_t epoch,
                 std::span<int64_t> values) {
  std::mt19937_64 generator(seed + (epoch << 32));
  for (int64_t i = std::ssize(values) - 1; i > 0; --i) {
    std::swap(values[i], values[generator() % static_cast<uint64_t>(i + 1)]);
  }
}

void NaiveShuffle(int64_t n, uint64_t seed, uint64_t epoch,
                  std::span<int64_t> values) {
  std::mt19937_64 generator(seed + (epoch << 32));
  for (int64_t& value : values) {
    std::swap(value, values[generator() % static_cast<uint64_t>(n)]);
  }
}

void Affine(int64_t n, uint64_t seed, uint64_t epoch,
            std::span<int64_t> values) {
  std::mt19937_64 generator(seed + (epoch << 32));
  const auto draw = [&generator, n] {
    return static_cast<int64_t>(generator() % static_cast<uint64_t>(n));
  };
  int64_t factor = draw();
  while (std::gcd(factor, n) != 1) factor = draw();
  const int64_t shift = draw();
  for (int64_t& value : values) {
    value = (MultiplyModulo(value, factor, n) + shift) % n;
  }
}

void Rotation(int64_t n, uint64_t seed, uint64_t epoch,
              std::span<int64_t> values) {
  const int64_t shift = KeyedPermutation(n, seed, epoch)(0);
  for (int64_t& value : values) value = (value + shift) % n;
}

void IgnoresEpoch(int64_t n, uint64_t seed, uint64_t,
                  std::span<int64_t> values) {
  Ours(n, seed, 0, values);
}

void IgnoresSeed(int64_t n, uint64_t, uint64_t epoch,
                 std::span<int64_t> values) {
  Ours(n, 0, epoch, values);
}

void AddsSeedAndEpoch(int64_t n, uint64_t seed, uint64_t epoch,
                      std::span<int64_t> values) {
  Ours(n, seed + epoch, 0, values);
}

void IgnoresSize(int64_t n, uint64_t seed, uint64_t epoch,
                 std::span<int64_t> values) {
  Ours(int64_t{1} << 40, seed, epoch, values);
  for (int64_t& value : values) value %= n;
}

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

void EvenOnly(int64_t n, uint64_t seed, uint64_t epoch,
              std::span<int64_t> values) {
  Ours(n, seed, epoch, values);
  if (IsOdd(values)) std::swap(values[0], values[1]);
}

}  // namespace lockstep
