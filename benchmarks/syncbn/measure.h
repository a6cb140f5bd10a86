// The order in which subjects take their turns at a layer shape or the network.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_MEASURE_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_MEASURE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/harness/rounds.h"
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

// Measures a layer of the shape, or a step of the network, in rounds
// (harness/rounds.h): settings.rounds, or 3 to 200 within its part of
// settings.seconds. A subject that is missing gets no further turn. Errors:
// those of a turn, beginning with the subject's name.
absl::StatusOr<MeasuredTurns> MeasureLayer(const SyncBnSettings& settings,
                                           const LayerShape& shape,
                                           const TakeSyncBnTurn& take_turn,
                                           const ClockFunction& clock);
absl::StatusOr<MeasuredTurns> MeasureNetwork(const SyncBnSettings& settings,
                                             const TakeSyncBnTurn& take_turn,
                                             const ClockFunction& clock);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_MEASURE_H_
