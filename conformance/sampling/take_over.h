// Ranks that go on with an epoch that others stopped.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_TAKE_OVER_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_TAKE_OVER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/sampling_subject.h"

namespace lockstep {

// Borrows all of it.
struct TakeOver {
  const EpochPlace& start;          // Of the epoch.
  const SamplingCase& last;         // Who stopped, ...
  int64_t steps;                    // ... after how many steps of theirs, ...
  const EpochPlace& stopped;        // ... and where.
  const SamplingCase& next;         // Who goes on.
  const std::vector<Batches>& got;  // What they draw.
};

// What is wrong with that, or none; then "; as if ..." where one of these gives
// every index: the epoch begun anew; what was visited before the last ranks
// forgotten; as many samples of each rank taken as visited as each had before.
std::optional<std::string> WrongTakeOver(const TakeOver& take_over);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_TAKE_OVER_H_
