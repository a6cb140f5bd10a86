// What a wrong resumption of an epoch looks like: the cause that gives it.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_RESUME_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_RESUME_CAUSES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"

namespace lockstep {

// One rank's batches after a stop, which are not those that were left.
struct WrongResume {
  const SamplerFactory& make;
  const SamplingCase& c;
  int rank;
  int64_t epoch;
  size_t step;           // After which the epoch was stopped.
  const Batches& whole;  // The epoch's.
  const Batches& got;
};

// ", as if ..." where one of these gives every index, else "": a batch again; a
// batch skipped; the same place of the epoch before or after.
std::string CauseOfResume(const WrongResume& wrong);

// The same of a whole epoch that is set after the one before was stopped after
// `step` and gone on with: it begins there; it is still the one before.
std::string CauseOfNextEpoch(const WrongResume& wrong);

// Ranks that go on with an epoch that others stopped. Borrows all of it.
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

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_RESUME_CAUSES_H_
