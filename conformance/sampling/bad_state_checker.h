// Holds a sampler to refusing states that are none of its own.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_BAD_STATE_CHECKER_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_BAD_STATE_CHECKER_H_

#include "absl/status/status.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_subject.h"
#include "sampler/sampler_state.h"

namespace lockstep {

// BadStates: that Restore refuses a state of another data set, order or seed,
// one with each number out of range, and, where batches are dealt, one within a
// batch; each by what is wrong; and that the sampler, before an epoch and
// after a batch of it, then draws as if nothing had been. `start` is the case's
// state at the start of an epoch, of which `want` are the last rank's batches.
// Errors: kDataLoss; else the subject's.
absl::Status CheckBadStates(const SubjectFactory& make, const SamplingCase& c,
                            const SamplerState& start, const Batches& want);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_BAD_STATE_CHECKER_H_
