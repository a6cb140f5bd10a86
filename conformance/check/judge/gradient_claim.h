// The judges of gradients: of their bits on all ranks, and of their values.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_GRADIENT_CLAIM_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_GRADIENT_CLAIM_H_

#include "conformance/check/judge/evidence.h"

namespace lockstep::conformance {

// Judges that all written gradients and parameters have the same bits on every
// rank.
Judgement JudgeRanksAgree(Evidence& evidence);

// Judges that the written gradients equal the reference's.
Judgement JudgeGradients(Evidence& evidence);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_GRADIENT_CLAIM_H_
