// What the turns of all teams give at one size of message.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_MEASURE_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_MEASURE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/all_reduce/plan.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/rounds.h"

namespace lockstep::benchmarks {

// What the turns of one subject gave at one size.
struct MeasuredSubject {
  Subject subject;
  std::vector<double> seconds = {};  // Of every timed call; at least one.
  int64_t wrong = 0;
};

struct MeasuredSize {
  int64_t bytes = 0;
  int rounds = 0;
  std::vector<MeasuredSubject> subjects;  // The copy among them.
};

using TakeTurnFunction = std::function<absl::StatusOr<TimedCalls>(
    const Team& team, const TurnRequest& request)>;

// Measures messages of `bytes` in rounds (harness/rounds.h): settings.rounds,
// or at least 3 within the size's part of settings.seconds. A peer whose turn
// fails is taken out of `subjects` and added to `missing`. Error: that of any
// other's turn, beginning with its name.
absl::StatusOr<MeasuredSize> MeasureSize(const AllReduceSettings& settings,
                                         int64_t bytes,
                                         const TakeTurnFunction& take_turn,
                                         const ClockFunction& clock,
                                         std::vector<Subject>& subjects,
                                         std::vector<MissingPeer>& missing);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_MEASURE_H_
