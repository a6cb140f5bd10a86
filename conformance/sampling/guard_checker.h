// Holds a sampler to what it must refuse.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_GUARD_CHECKER_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_GUARD_CHECKER_H_

#include <vector>

#include "absl/status/status.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_subject.h"

namespace lockstep {

// Guards: that the case is refused, on every rank, if it leaves no step; else,
// that ranks beside the group and sizes below 1 are. Errors: kDataLoss.
absl::Status CheckGuards(const SubjectFactory& make, const SamplingCase& c);

// RepeatedDraw: that, by default and under each mode, a draw after one of epoch
// 0 is refused, or of epoch 0, or of epoch 1; and that another epoch can be set
// after that. `epochs` are the ranks' batches of epochs 0, 1 and 2. Errors:
// kDataLoss; else the subject's.
absl::Status CheckRepeatedDraw(const SubjectFactory& make,
                               const SamplingCase& c,
                               const std::vector<std::vector<Batches>>& epochs);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_GUARD_CHECKER_H_
