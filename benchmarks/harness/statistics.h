// Order statistics of measured samples, and the clock that samples are taken
// by.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_STATISTICS_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_STATISTICS_H_

#include <chrono>
#include <cstdint>
#include <span>

namespace lockstep::benchmarks {

// Seconds since the host started: the same clock in all of its processes, so
// that times from several ranks of one host compare.
inline double SteadySeconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// The p-th percentile by nearest rank: with the samples in ascending order
// x[1..n], x[ceil(p / 100 * n)], and x[1] for p = 0. It is always one of the
// samples; with fewer than 100 of them the 99th percentile is the largest.
// samples: at least one, in any order, no NaN. p in [0, 100].
// Cost: O(n) and a copy.
double Percentile(std::span<const double> samples, double p);

// The middle sample, or the mean of the two middle ones. At least one sample.
double Median(std::span<const double> samples);

// The position of the sample that is the median, or the smaller of the two
// middle ones. At least one sample. For when
// what was measured together with that sample matters too.
int64_t MedianIndex(std::span<const double> samples);

// At least one sample.
double Mean(std::span<const double> samples);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_STATISTICS_H_
