// Order statistics of samples, and random numbers by position.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_STATISTICS_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_STATISTICS_H_

#include <cstdint>
#include <span>

#include "base/counter_random.h"

namespace lockstep::benchmarks {

// Returns the p-th percentile by nearest rank: with the samples in ascending
// order x[1..n], x[ceil(p / 100 * n)], and x[1] for p = 0. The result is always
// one of the samples; with fewer than 100 samples the 99th percentile is the
// largest.
// samples: at least one, in any order, no NaN. p in [0, 100].
// Cost: O(n) and a copy.
double Percentile(std::span<const double> samples, double p);

// Returns the middle sample, or the mean of the two middle ones. At least one
// sample.
double Median(std::span<const double> samples);

// Returns the position of the median sample, or of the smaller of the two
// middle ones. At least one sample. For callers that need what was measured
// together with the median.
int64_t MedianIndex(std::span<const double> samples);

// Returns the mean. At least one sample.
double Mean(std::span<const double> samples);

// Returns the key of a stream of numbers, for a seed and the stream's number.
constexpr uint64_t UniformKey(uint64_t seed, uint64_t number) {
  return MixBits(MixBits(seed + 0x9e3779b97f4a7c15) + number);
}

// Returns number i of the stream, uniform in [-1, 1).
constexpr double Uniform(uint64_t key, int64_t i) {
  const uint64_t bits =
      MixBits(key + (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15);
  return static_cast<double>(static_cast<int64_t>(bits) >> 11) * 0x1p-52;
}

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_STATISTICS_H_
