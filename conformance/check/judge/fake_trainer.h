// A fake trainer. It starts no ranks: it returns what the processes of a judged
// trainer would have written.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_TRAINER_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_TRAINER_H_

#include <string>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/judge.h"

namespace lockstep::conformance {

// Return all runs, or the extra runs, of a FakeCase by the trainer with a
// mutant. If a plan has two starts, the runs are joined.
//
// mutant: a JudgeMutant's name; "" for the right trainer. The trainer also
// knows the wrong variants "loses_a_sample",
// "uneven_gradient", "rounded_loss", "other_buffers_on_last_rank",
// "first_rank_evaluates_all_too" and "truncated_accuracy", and the right
// variant "first_rank_evaluates_all".
//
// As in a real trainer, a mutant shows at every world size at which it makes
// sense.
CaseRuns FakeRuns(const CheckCase& check, const std::string& mutant);
RunExtra FakeExtraRuns(const std::string& mutant);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_FAKE_TRAINER_H_
