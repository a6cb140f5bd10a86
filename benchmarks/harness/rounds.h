// The order of turns, and how many rounds of them there are.
#ifndef LOCKSTEP_BENCHMARKS_HARNESS_ROUNDS_H_
#define LOCKSTEP_BENCHMARKS_HARNESS_ROUNDS_H_

#include <cstddef>
#include <functional>

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

// Which of `count` subjects has turn `turn` of round `round`. Every second
// round runs backwards, so that none is always behind the same one, and begins
// one further than the round before it, so that none is behind itself where
// rounds meet (unless there are but two); so does every pair of rounds.
size_t SubjectOfTurn(int round, size_t turn, size_t count);

// Gives each of `subjects` one turn in every round, so that a drift of the
// machine and what a neighbour leaves in the caches meet all alike. Returns the
// number of rounds. Error: that of the first turn which fails.
absl::StatusOr<int> MeasureRounds(
    const RoundLimits& limits, size_t subjects, const ClockFunction& clock,
    const std::function<absl::Status(int round, size_t subject)>& take_turn);

// The error with the name of what failed before its message.
absl::Status Named(absl::string_view name, const absl::Status& status);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_HARNESS_ROUNDS_H_
