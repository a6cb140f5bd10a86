// The order in which teams take their turns.
#ifndef LOCKSTEP_BENCHMARKS_ALL_REDUCE_MEASURE_H_
#define LOCKSTEP_BENCHMARKS_ALL_REDUCE_MEASURE_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/all_reduce/plan.h"
#include "benchmarks/all_reduce/report.h"
#include "benchmarks/all_reduce/turn.h"

namespace lockstep::benchmarks {

using TakeTurnFunction = std::function<absl::StatusOr<TurnResult>(
    const Team& team, const TurnRequest& request)>;

// Seconds on any clock that does not jump.
using ClockFunction = std::function<double()>;

// Measures messages of `bytes`: in every round each subject has one turn, the
// first of a round another one each time, so that a drift of the machine and
// what a neighbour leaves in the caches meet all alike. settings.rounds rounds;
// if that is 0 at least 3, and until the size's part of settings.seconds is
// over.
//
// A peer whose turn fails is taken out of `subjects` and added to `missing`.
// Error: that of any other's turn, beginning with its name.
absl::StatusOr<MeasuredSize> MeasureSize(const AllReduceSettings& settings,
                                         int64_t bytes,
                                         const TakeTurnFunction& take_turn,
                                         const ClockFunction& clock,
                                         std::vector<Subject>& subjects,
                                         std::vector<MissingPeer>& missing);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_ALL_REDUCE_MEASURE_H_
