// The judge of how a trainer's runs ended.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_RUN_CLAIM_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_RUN_CLAIM_H_

#include "conformance/check/judge/evidence.h"

namespace lockstep::conformance {

// Judges that all runs ended well, wrote everything that the case asks for, and
// only finite numbers. Returns kSkipped, with the trainer's reason, if a run
// says that the trainer does not support the case. If a run failed and one rank
// wrote its output before the case's last step while others wrote nothing, the
// cause is that rank's missing steps.
Judgement JudgeRun(Evidence& evidence);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_RUN_CLAIM_H_
