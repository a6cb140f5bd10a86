// What all benchmarks measure with: the order of turns and how many rounds of
// them there are, the clock that samples are taken by, their order statistics,
// and numbers that are the same everywhere, by position.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_ROUNDS_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_ROUNDS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::benchmarks {

// How many rounds there are: `rounds`, or if that is 0 as many as end within
// `seconds`, if each takes as long as the longest so far; then at least
// `fewest`, and at most `most`.
struct RoundLimits {
  int rounds = 0;
  int fewest = 3;
  int most = 1000;
  double seconds = 0;
};

// Seconds on any clock that does not jump.
using ClockFunction = std::function<double()>;

// Gives each of `subjects` one turn in every round, so that a drift of the
// machine and what a neighbour leaves in the caches meet all alike. Returns the
// number of rounds. Error: that of the first turn which fails.
absl::StatusOr<int> MeasureRounds(
    const RoundLimits& limits, size_t subjects, const ClockFunction& clock,
    const std::function<absl::Status(int round, size_t subject)>& take_turn);

// The error with the name of what failed before its message.
absl::Status Named(absl::string_view name, const absl::Status& status);

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

// The finaliser of SplitMix64 (Steele, Lea & Flood 2014).
constexpr uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A stream of numbers for each seed and number.
constexpr uint64_t UniformKey(uint64_t seed, uint64_t number) {
  return MixBits(MixBits(seed + 0x9e3779b97f4a7c15) + number);
}

// Number i of the stream, uniform in [-1, 1).
constexpr double Uniform(uint64_t key, int64_t i) {
  const uint64_t bits =
      MixBits(key + (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15);
  return static_cast<double>(static_cast<int64_t>(bits) >> 11) * 0x1p-52;
}

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_ROUNDS_H_
