// Checks that an epoch can be stopped and resumed anywhere.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_RESUME_CHECKER_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_RESUME_CHECKER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"

namespace lockstep::conformance {

// Stops epoch 1 of the case after each step, and also before the first.
// Converts rank 0's state to JSON and back, restores it on new ranks, and
// checks in this order:
//
//   States     All ranks return the same state, and JSON keeps it.
//   Resume     At the same world and batch size, the batches that were left
//              come, index for index.
//   Rescale    Every sample that no rank has visited comes once, in the order
//              it had. Padding may repeat fewer samples than there are ranks.
//              drop_tail may drop as few, and drop_last drops an incomplete
//              step. This holds at each world size of the grid, with this and
//              another batch size. It also holds after a second stop, at this
//              world size again and at another.
//   NextEpoch  The next epoch is a whole one, whether nothing, a batch or
//              all of the remaining batches are drawn before.
//   BadStates  A state of another order, or of no place in this order, is
//              refused by its fault. The sampler remains unchanged.
//
// The other batch size, and the sizes after the second stop, depend on the case
// and the step. Passes if StepsOf is 0. Errors: kDataLoss, which starts with
// the property's name, if a check fails; otherwise the sampler's error.
absl::Status CheckResuming(const SamplerFactory& make, const SamplingCase& c);

// Runs CheckEpochs, then CheckResuming.
absl::Status CheckSampler(const SamplerFactory& make, const SamplingCase& c);

// The following functions find the causes of epochs that were resumed wrongly.

// One rank's batches after a stop, which differ from those that were left.
struct WrongResume {
  const SamplerFactory& make;
  const SamplingCase& c;
  int rank;
  int64_t epoch;
  size_t step;           // The epoch was stopped after so many steps.
  const Batches& whole;  // All batches of the epoch.
  const Batches& got;
};

// Returns ", as if ..." if a cause gives every index, otherwise "".
std::string CauseOfResume(const WrongResume& wrong);

// Explains a whole epoch likewise. The previous epoch was stopped after `step`
// and resumed, and then this epoch was set.
std::string CauseOfNextEpoch(const WrongResume& wrong);

// Ranks that resume an epoch after other ranks stopped. Borrows all fields.
struct TakeOver {
  const EpochPosition& start;       // The start of the epoch.
  const SamplingCase& last;         // The ranks that stopped.
  int64_t steps;                    // The number of steps that they took.
  const EpochPosition& stopped;     // The place where they stopped.
  const SamplingCase& next;         // The ranks that resume.
  const std::vector<Batches>& got;  // The batches that these draw.
};

// Returns how the resumed epoch is wrong, or none. Adds "; as if ..." if a
// cause gives every index.
std::optional<std::string> WrongTakeOver(const TakeOver& take_over);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_RESUME_CHECKER_H_
