// The order in which subjects take their turns at a layer shape or the network.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_MEASURE_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_MEASURE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/syncbn/plan.h"
#include "benchmarks/syncbn/turn.h"

namespace lockstep::benchmarks {

// What the turns of one subject gave.
struct SyncBnMeasured {
  SyncBnSubject subject = SyncBnSubject::kLocal;
  std::vector<TeamCall> forward = {};
  std::vector<TeamCall> backward = {};
  int64_t wrong = 0;
  std::string note = {};
  std::string gpu = {};
  bool shared_gpu = false;
  std::string missing = {};  // Why it was not measured (any more).
};

struct MeasuredTurns {
  int rounds = 0;
  std::vector<SyncBnMeasured> subjects;  // As planned.

  // Of that subject, or null if it was not planned.
  const SyncBnMeasured* Find(SyncBnSubject subject) const;
};

using TakeSyncBnTurn =
    std::function<absl::StatusOr<TeamTurn>(const SyncBnRequest&)>;

// Measures a layer of the shape, or a step of the network. In every round each
// subject has one turn; rounds begin with one after the other, and every second
// one goes backwards, so that a drift of the machine and what a subject leaves
// behind meet all alike. settings.rounds rounds; if that is 0 at least 3, and
// until its part of settings.seconds is over by `clock`, in seconds. A subject
// that is missing gets no further turn. Errors: those of a turn, beginning with
// the subject's name.
absl::StatusOr<MeasuredTurns> MeasureLayer(
    const SyncBnSettings& settings, const LayerShape& shape,
    const TakeSyncBnTurn& take_turn, const std::function<double()>& clock);
absl::StatusOr<MeasuredTurns> MeasureNetwork(
    const SyncBnSettings& settings, const TakeSyncBnTurn& take_turn,
    const std::function<double()>& clock);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_MEASURE_H_
