// Judges what a trainer did on a case.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/verdict.h"
#include "conformance/check/run/trainer_run.h"

namespace lockstep {

// Starts the trainer once more with one rank, to tell causes apart: one step,
// or no step (`epochs` is 0) and an evaluation, on part of the data. Called
// only when a claim fails, and for the reference of local batch norm.
using RunExtra = std::function<absl::StatusOr<TrainerRun>(const ExtraStart&)>;

// Judges every claim in `check.claims`, in order. A claim that cannot be judged
// because an earlier one failed is kSkipped and says so.
std::vector<Verdict> Judge(const CheckCase& check, const CaseRuns& runs,
                           const RunExtra& run_extra);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_H_
