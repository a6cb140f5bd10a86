#include "benchmarks/harness/rounds.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace lockstep::benchmarks {
namespace {

bool IsDone(const RoundLimits& limits, int rounds, double elapsed,
            double longest) {
  if (limits.rounds > 0) return rounds >= limits.rounds;
  if (rounds < limits.fewest) return false;
  return rounds >= limits.most || elapsed + longest > limits.seconds;
}

// Which of `count` subjects has turn `turn` of round `round`. Every second
// round runs backwards, so that none is always behind the same one, and begins
// one further than the round before it, so that none is behind itself where
// rounds meet (unless there are but two); so does every pair of rounds.
size_t SubjectOfTurn(int round, size_t turn, size_t count) {
  const size_t first = static_cast<size_t>(round) / 2;
  return round % 2 == 0 ? (first + turn) % count
                        : (first + 1 + count - turn) % count;
}

}  // namespace

absl::StatusOr<int> MeasureRounds(
    const RoundLimits& limits, size_t subjects, const ClockFunction& clock,
    const std::function<absl::Status(int round, size_t subject)>& take_turn) {
  const double start = clock();
  double longest = 0;
  int round = 0;
  for (double now = start; !IsDone(limits, round, now - start, longest);) {
    for (size_t turn = 0; turn < subjects; ++turn) {
      LOCKSTEP_RETURN_IF_ERROR(
          take_turn(round, SubjectOfTurn(round, turn, subjects)));
    }
    const double end = clock();
    longest = std::max(longest, end - now);
    now = end;
    ++round;
  }
  return round;
}

absl::Status Named(absl::string_view name, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(name, ": ", status.message()));
}

double Percentile(std::span<const double> samples, double p) {
  std::vector<double> sorted(samples.begin(), samples.end());
  const auto n = static_cast<double>(sorted.size());
  // p * n first: exact for the usual p, where p / 100 is not.
  const auto rank = static_cast<int64_t>(std::ceil(p * n / 100.0));
  const auto nth = sorted.begin() + std::max<int64_t>(rank, 1) - 1;
  std::nth_element(sorted.begin(), nth, sorted.end());
  return *nth;
}

double Median(std::span<const double> samples) {
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t upper = sorted.size() / 2;
  if (sorted.size() % 2 == 1) return sorted[upper];
  return (sorted[upper - 1] + sorted[upper]) / 2;
}

int64_t MedianIndex(std::span<const double> samples) {
  std::vector<int64_t> order(samples.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return samples[a] < samples[b];
  });
  return order[(order.size() - 1) / 2];
}

double Mean(std::span<const double> samples) {
  return std::accumulate(samples.begin(), samples.end(), 0.0) /
         static_cast<double>(samples.size());
}

}  // namespace lockstep::benchmarks
