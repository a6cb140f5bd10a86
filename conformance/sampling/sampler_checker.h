// Holds a sampler to its semantics, in whole epochs, and to what a state
// promises: stop anywhere, go on anywhere.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLER_CHECKER_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLER_CHECKER_H_

#include <vector>

#include "absl/status/status.h"
#include "conformance/sampling/tested_sampler.h"
#include "sampler/sampler.h"

namespace lockstep {

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

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLER_CHECKER_H_
