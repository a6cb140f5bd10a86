// Holds a sampler to its semantics, in whole epochs, and to what a state
// promises: stop anywhere, go on anywhere.
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

// Draws epochs 0, 1 and 2 of the case on every rank and asks, in this order:
//
//   Guards        are impossible options refused, each by its name?
//   Batches       are batches whole but for the last, of all ranks the same
//                 number, and as many as num_batches() says?
//   Lengths       does each rank draw as many indices as it should?
//   Disjointness  does no index come on two ranks, but for padding?
//   Coverage      does every index come (drop: every index but those dropped)?
//   Padding       are the indices that come again the right ones?
//   Deal          are the ranks dealt the order that one rank has?
//   EpochsDiffer  does every epoch have an order of its own if shuffled?
//   SeedsDiffer   does another seed?
//   Order         is it, index for index, what the reference draws?
//   RepeatedDraw  does a second draw without SetEpoch do what it should?
//
// Errors: kDataLoss, starting with the name, if the answer is no; otherwise
// what the sampler gave.
absl::Status CheckEpochs(const SamplerFactory& make, const SamplingCase& c);

// Stops epoch 1 of the case after each of its steps, none and all included,
// takes rank 0's state to JSON and back, restores it on new ranks, and asks, in
// this order:
//
//   States     do all ranks give the same state, and does JSON keep it?
//   Resume     at the same world and batch size, do the batches that were left
//              come, index for index?
//   Rescale    at each world size of the grid, with this and another batch
//              size, and after a second stop at this world size again or at
//              another: does what nobody had visited come, each index once but
//              for padding (fewer than there are ranks), none lost but what
//              drop_tail (as few) or drop_last drops, in the order it had?
//   NextEpoch  is the epoch after that a whole one, whether nothing, a batch or
//              all of what was left is drawn before?
//   BadStates  is a state of another order, or of no place in this one, refused
//              by what is wrong with it, and the sampler left as it was?
//
// Which other batch size, and the sizes after the second stop, are drawn from
// the case and the step. Passes where StepsOf is 0. Errors: kDataLoss, starting
// with the name, if the answer is no; otherwise what the sampler gave.
absl::Status CheckResuming(const SamplerFactory& make, const SamplingCase& c);

// CheckEpochs, then CheckResuming.
absl::Status CheckSampler(const SamplerFactory& make, const SamplingCase& c);

// Parts of these.
//
// Guards: that the case is refused, on every rank, if it leaves no step; else,
// that ranks beside the group and sizes below 1 are. Errors: kDataLoss.
absl::Status CheckGuards(const SamplerFactory& make, const SamplingCase& c);

// RepeatedDraw: that, by default and under each mode, a draw after one of epoch
// 0 is refused, or of epoch 0, or of epoch 1; and that another epoch can be set
// after that. `epochs` are the ranks' batches of epochs 0, 1 and 2. Errors:
// kDataLoss; else the sampler's.
absl::Status CheckRepeatedDraw(const SamplerFactory& make,
                               const SamplingCase& c,
                               const std::vector<std::vector<Batches>>& epochs);

// BadStates: that Restore refuses a state of another data set, order or seed,
// one with each number out of range, and, where batches are dealt, one within a
// batch; each by what is wrong; and that the sampler, before an epoch and
// after a batch of it, then draws as if nothing had been. `start` is the case's
// state at the start of an epoch, of which `want` are the last rank's batches.
// Errors: kDataLoss; else the sampler's.
absl::Status CheckBadStates(const SamplerFactory& make, const SamplingCase& c,
                            const SamplerState& start, const Batches& want);

// What wrong epochs, and wrong resumptions of one, look like: the causes that
// would give them.

// One epoch of a case, as the sampler drew it.
struct DrawnEpoch {
  const SamplerFactory& make;
  const SamplingCase& c;
  int64_t epoch;
  const std::vector<Batches>& ranks;
  const std::vector<int64_t>& one_rank;  // The whole of it, as one rank draws.
  // All epochs of the case, so.
  std::span<const std::vector<int64_t>> epochs = {};
};

// Each returns "; ..." for the first cause that gives every index of the
// epoch, on every rank and in its place, or else "", but where another measure
// is named.

// A rank with another number of indices than it should have. Without a cause,
// the indices that nobody draws.
std::string CauseOfLengths(const DrawnEpoch& drawn);

// An index on two ranks, not as padding.
std::string CauseOfSharing(const DrawnEpoch& drawn);

// An index that does not exist.
std::string CauseOfIndex(const DrawnEpoch& drawn);

// An index that nobody draws: the one that comes most often, and whether it
// comes once more than the others, in place of the only one that is lost.
// Precondition: all that are drawn exist.
std::string CauseOfAbsence(const DrawnEpoch& drawn);

// An index that comes more often than it should. By how often each index comes,
// wherever.
std::string CauseOfPadding(const DrawnEpoch& drawn);

// A shuffle that is not the wanted one, by one rank's order.
std::string CauseOfOrder(const DrawnEpoch& drawn);

// Ranks that are not dealt the order of one.
std::string CauseOfDeal(const DrawnEpoch& drawn);

// How often each index of the data set is drawn. Precondition: they exist.
std::vector<int64_t> CountsOf(const DrawnEpoch& drawn);

// The indices of a rank's batches, in their order.
std::vector<int64_t> Flat(const Batches& batches);

// "index 7"; "indices 3, 4, 9"; of many, the first and how many.
std::string Indices(const std::vector<int64_t>& indices);

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

// ", as if ..." where a cause gives every index, else "".
std::string CauseOfResume(const WrongResume& wrong);

// The same of a whole epoch that is set after the one before was stopped after
// `step` and gone on with.
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

// What is wrong with that, or none; then "; as if ..." where a cause gives
// every index.
std::optional<std::string> WrongTakeOver(const TakeOver& take_over);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLER_CHECKER_H_
