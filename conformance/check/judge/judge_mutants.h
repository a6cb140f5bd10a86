// The mutants that Judge must reject and name: each planted in the fake
// trainer.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_

#include <string>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/fake_trainer.h"
#include "conformance/check/judge/verdict.h"
#include "conformance/mutant.h"

namespace lockstep {

struct JudgeMutant {
  std::string name;
  std::string planted;  // What is wrong, in a phrase.
  TrainerMutant mutant = TrainerMutant::kNone;
  std::string case_name;       // The built-in case that is there for it.
  Claim claim = Claim::kRun;   // The one that must fail.
  Cause cause = Cause::kNone;  // The only one to be named.
};

std::vector<JudgeMutant> AllJudgeMutants();

// The same as a suite of the folder "check", whose checks are the claims.
MutantSuite JudgeMutants();

// The built-in case of that name WithFakeModel.
CheckCase FakeCase(const std::string& name, int world_size);

// The verdicts on the mutant; `check` is a FakeCase.
std::vector<Verdict> JudgeTrainer(TrainerMutant mutant, const CheckCase& check);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_
