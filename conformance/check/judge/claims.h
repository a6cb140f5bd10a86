// Each claim, judged by itself; Judge (check_case.h) puts them together.
//
// All but JudgeRun take for granted that JudgeRun passed: every rank's output
// is there, with the steps it says it did, finite and of the right shapes.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_CLAIMS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_CLAIMS_H_

#include <cstdint>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/evidence.h"
#include "conformance/check/judge/verdict.h"

namespace lockstep {

// Both runs and the shadows ended well and wrote what the case asks for, with
// no number that is not finite. kSkipped, with the trainer's reason, if one of
// them says that it does not support the case. Where a run failed although some
// rank wrote its output, having done fewer steps than the others, that rank's
// missing steps are the cause.
Verdict JudgeRun(const CheckCase& check, const CaseRuns& runs);

// Every epoch of either run draws each sample once, and every step of all ranks
// together the samples of one rank's step; shuffled epochs differ.
Verdict JudgeSamples(const Evidence& evidence);

// All gradients and parameters that were written have the same bits on every
// rank.
Verdict JudgeRanksAgree(Evidence& evidence);

// The written gradients are the reference's.
Verdict JudgeGradients(Evidence& evidence);

// The ranks' losses, weighted by their samples, are one rank's in the steps
// from 1 to `last_step`.
Verdict JudgeLoss(Evidence& evidence, int64_t last_step);

// The written parameters and buffers are one rank's; frozen and unused ones
// where they started. With local batch norm and in bfloat16 only the first step
// is judged; with local batch norm, buffers are each rank's own.
Verdict JudgeState(Evidence& evidence);

// The ranks evaluate every sample once between them (or every rank all of
// them), and all report the metrics of one rank.
Verdict JudgeEvaluation(Evidence& evidence);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_CLAIMS_H_
