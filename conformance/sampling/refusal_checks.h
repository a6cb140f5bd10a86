// The checks of refused options, of second draws and of refused states: parts
// of CheckEpochs (epoch_checker.h) and CheckResuming (resume_checker.h).
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_REFUSAL_CHECKS_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_REFUSAL_CHECKS_H_

#include <vector>

#include "absl/status/status.h"
#include "conformance/sampling/tested_sampler.h"
#include "sampler/sampler.h"

namespace lockstep::conformance {

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

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_REFUSAL_CHECKS_H_
