// The judge of evaluation.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_EVALUATION_CLAIM_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_EVALUATION_CLAIM_H_

#include "conformance/check/judge/evidence.h"

namespace lockstep::conformance {

// Judges that the ranks together evaluate every sample once (or each rank
// evaluates all of them), and that all ranks report the metrics of one rank.
Judgement JudgeEvaluation(Evidence& evidence);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_EVALUATION_CLAIM_H_
