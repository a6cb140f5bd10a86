// Checks that a sampler follows its semantics in whole epochs, and that an
// epoch can be stopped and resumed anywhere.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLER_CHECKER_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLER_CHECKER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "conformance/sampling/tested_sampler.h"
#include "sampler/sampler.h"

namespace lockstep::conformance {

// Draws epochs 0, 1 and 2 of the case on every rank, and checks in this order:
//
//   Guards        Impossible options are refused, each by its name.
//   Batches       All batches but the last are full. All ranks have the same
//                 number of batches, which is num_batches().
//   Lengths       Each rank draws as many indices as it should.
//   Disjointness  No index comes on two ranks, except as padding.
//   Coverage      Every index comes, except those that a drop option drops.
//   Padding       The indices that come again are the right ones.
//   Deal          The ranks are dealt the order that one rank has.
//   EpochsDiffer  If shuffled, every epoch has its own order.
//   SeedsDiffer   Another seed gives another order.
//   Order         The order is the reference's, index for index.
//   RepeatedDraw  A second draw without SetEpoch does what it should.
//
// Errors: kDataLoss, which starts with the property's name, if a check fails;
// otherwise the sampler's error.
absl::Status CheckEpochs(const SamplerFactory& make, const SamplingCase& c);

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

// The following functions are parts of these checks.
//
// Checks "Guards". If the case leaves no step, every rank must refuse it.
// Otherwise ranks outside the group and sizes below 1 must be refused. Errors:
// kDataLoss.
absl::Status CheckGuards(const SamplerFactory& make, const SamplingCase& c);

// Checks "RepeatedDraw", by default and under each mode. The draw after one of
// epoch 0 must be refused, or give epoch 0, or give epoch 1. Afterwards another
// epoch can be set. `epochs` holds the ranks' batches of epochs 0, 1 and 2.
// Errors: kDataLoss, or the sampler's.
absl::Status CheckRepeatedDraw(const SamplerFactory& make,
                               const SamplingCase& c,
                               const std::vector<std::vector<Batches>>& epochs);

// Checks "BadStates": Restore refuses a state of another data set, order or
// seed, and a state with a number out of range. If batches are dealt, it also
// refuses a state within a batch. Each error names the fault. Before an epoch,
// and after one of its batches, the sampler then draws as if nothing had
// happened. `start` is the case's state at the start of an epoch, and `want`
// holds the last rank's batches of this epoch. Errors: kDataLoss, or the
// sampler's.
absl::Status CheckBadStates(const SamplerFactory& make, const SamplingCase& c,
                            const SamplerState& start, const Batches& want);

// The following functions find the causes of wrong epochs and of epochs that
// were resumed wrongly.

// One epoch of a case, as the sampler drew it.
struct DrawnEpoch {
  const SamplerFactory& make;
  const SamplingCase& c;
  int64_t epoch;
  const std::vector<Batches>& ranks;
  // The whole epoch, as one rank draws it.
  const std::vector<int64_t>& one_rank;
  // All epochs of the case, each as one rank draws it.
  std::span<const std::vector<int64_t>> epochs = {};
};

// Each function returns "; ..." for the first cause that gives every index of
// the epoch, on every rank and in its place, or "". A function with another
// measure says so.

// Explains a rank with a wrong number of indices. Without a cause, returns the
// indices that no rank draws.
std::string CauseOfLengths(const DrawnEpoch& drawn);

// Explains an index on two ranks that is not padding.
std::string CauseOfSharing(const DrawnEpoch& drawn);

// Explains an index that does not exist.
std::string CauseOfIndex(const DrawnEpoch& drawn);

// Explains an index that no rank draws, by the index that comes most often.
// Also says whether it comes in place of the missing one: one index is missing,
// and one comes twice. Precondition: all drawn indices exist.
std::string CauseOfAbsence(const DrawnEpoch& drawn);

// Explains an index that comes too often. Compares how often each index comes,
// on any rank and in any place.
std::string CauseOfPadding(const DrawnEpoch& drawn);

// Explains a wrong shuffle, by one rank's order.
std::string CauseOfOrder(const DrawnEpoch& drawn);

// Explains ranks that are not dealt one rank's order.
std::string CauseOfDeal(const DrawnEpoch& drawn);

// Returns how often each index of the data set is drawn. Precondition: all
// drawn indices exist.
std::vector<int64_t> CountsOf(const DrawnEpoch& drawn);

// Returns the indices of a rank's batches, in their order.
std::vector<int64_t> Flat(const Batches& batches);

// Returns, for example, "index 7" or "indices 3, 4, 9". For many indices,
// returns their number and the first.
std::string Indices(const std::vector<int64_t>& indices);

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

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLER_CHECKER_H_
