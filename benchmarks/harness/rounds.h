// The order and number of turns: every subject of a benchmark has one turn in
// each round. Also the clock of turns.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_ROUNDS_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_ROUNDS_H_

#include <chrono>
#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::benchmarks {

// The number of rounds: `rounds`, unless it is 0. If it is 0, there are as many
// rounds as end within `seconds`, if each takes as long as the longest so far.
// There are then at least `fewest` and at most `most` rounds.
struct RoundLimits {
  int rounds = 0;
  int fewest = 3;
  int most = 1000;
  double seconds = 0;
};

// Returns the seconds of a clock that does not jump.
using ClockFunction = std::function<double()>;

// Gives each of `subjects` one turn in every round. The order varies, so that a
// drift of the machine and the caches' contents affect all subjects alike.
// Returns the number of rounds. Errors: that of the first turn which fails;
// CheckInterrupted's after the turn in which the signal came.
absl::StatusOr<int> MeasureRounds(
    const RoundLimits& limits, size_t subjects, const ClockFunction& clock,
    const std::function<absl::Status(int round, size_t subject)>& take_turn);

// Returns the error with `name` before its message.
absl::Status Named(absl::string_view name, const absl::Status& status);

// Returns the seconds since the host started. All processes of a host have the
// same clock, so times of several ranks of one host compare.
inline double SteadySeconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_ROUNDS_H_
