#include "benchmarks/harness/rounds.h"

#include <algorithm>
#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "benchmarks/harness/interrupt.h"

namespace lockstep::benchmarks {
namespace {

bool IsDone(const RoundLimits& limits, int rounds, double elapsed,
            double longest) {
  if (limits.rounds > 0) return rounds >= limits.rounds;
  if (rounds < limits.fewest) return false;
  return rounds >= limits.most || elapsed + longest > limits.seconds;
}

// Returns which of `count` subjects has turn `turn` of round `round`.
//
// Every second round runs backwards, so that no subject always follows the same
// one. It begins one subject further than the round before it, so that no
// subject follows itself where rounds meet (unless there are only two). Every
// pair of rounds begins one subject further too.
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
      const absl::Status status =
          take_turn(round, SubjectOfTurn(round, turn, subjects));
      LOCKSTEP_RETURN_IF_ERROR(CheckInterrupted());  // A turn's error may be
                                                     // due to it.
      LOCKSTEP_RETURN_IF_ERROR(status);
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

}  // namespace lockstep::benchmarks
