// The judge of parameters and buffers.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_STATE_CLAIM_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_STATE_CLAIM_H_

#include "conformance/check/judge/evidence.h"

namespace lockstep::conformance {

// Judges that the written parameters and buffers equal one rank's, and that
// frozen and unused parameters keep their start values. With local batch norm
// and in bfloat16, only the first step is judged. With local batch norm, each
// rank's buffers are compared with those of its own share.
Judgement JudgeState(Evidence& evidence);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_STATE_CLAIM_H_
