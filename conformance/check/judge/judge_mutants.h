// The mutants that Judge must reject and name. Each is planted in a fake
// trainer, whose ranks do not really run: it gives what the processes of a
// judged trainer would have written.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_

#include <string>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/judge.h"
#include "conformance/mutant.h"

namespace lockstep {

// The case with the fake trainer's model and data in place of LeNet and images;
// everything else as it is.
CheckCase WithFakeModel(CheckCase check);

// All runs of a case WithFakeModel, joined where a plan has two starts, and
// extra runs, by the trainer with that mutant: a JudgeMutant's name; "" for the
// right trainer. Beside those that are named it knows "loses_a_sample",
// "rounded_loss", "other_buffers_on_last_rank", "first_rank_evaluates_all_too"
// and "truncated_accuracy", and one that is right: "first_rank_evaluates_all".
// A mutant shows at every world size where it makes sense, as in a real
// trainer.
CaseRuns FakeRuns(const CheckCase& check, const std::string& mutant);
RunExtra FakeExtraRuns(const std::string& mutant);

struct JudgeMutant {
  const char* name;
  const char* planted;             // What is wrong, in a phrase.
  Cause cause;                     // The only one to be named.
  const char* case_name = "even";  // The built-in case that is there for it.
  Claim claim = Claim::kRun;       // The one that must fail.
};

std::vector<JudgeMutant> AllJudgeMutants();

// The same as a suite of the folder "check", whose checks are the claims.
MutantSuite JudgeMutants();

// The built-in case of that name WithFakeModel.
CheckCase FakeCase(const std::string& name, int world_size);

// The verdicts on the mutant; `check` is a FakeCase.
std::vector<Verdict> JudgeTrainer(const std::string& mutant,
                                  const CheckCase& check);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_
