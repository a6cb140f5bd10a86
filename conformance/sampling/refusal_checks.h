// Holds a sampler to refusing impossible options, second draws, and states that
// are none of its own.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_REFUSAL_CHECKS_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_REFUSAL_CHECKS_H_

#include <vector>

#include "absl/status/status.h"
#include "conformance/sampling/tested_sampler.h"
#include "sampler/sampler.h"

namespace lockstep {

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

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_REFUSAL_CHECKS_H_
