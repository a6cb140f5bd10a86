// The judge of the losses that ranks report.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_LOSS_CLAIM_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_LOSS_CLAIM_H_

#include <cstdint>

#include "conformance/check/judge/evidence.h"

namespace lockstep::conformance {

// Judges that in the steps from 1 to `last_step` the ranks' losses, weighted by
// their samples, equal one rank's.
Judgement JudgeLoss(Evidence& evidence, int64_t last_step);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_LOSS_CLAIM_H_
