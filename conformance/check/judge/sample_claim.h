// The judge of the samples that ranks draw.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_SAMPLE_CLAIM_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_SAMPLE_CLAIM_H_

#include "conformance/check/judge/evidence.h"

namespace lockstep::conformance {

// Judges that every epoch of both runs draws each sample once, that every step
// of all ranks together draws the samples of one rank's step, and that shuffled
// epochs differ.
Judgement JudgeSamples(Evidence& evidence);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_SAMPLE_CLAIM_H_
