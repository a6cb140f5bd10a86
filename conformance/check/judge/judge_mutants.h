// The mutants that Judge must reject and name. Each is planted in a fake
// trainer (fake_trainer.h).
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_

#include <string>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/judge.h"
#include "conformance/mutant.h"

namespace lockstep::conformance {

struct JudgeMutant {
  const char* name;
  const char* planted;             // The mistake, in a phrase.
  Cause cause;                     // The only cause to be named.
  const char* case_name = "even";  // The built-in case that is made for it.
  Claim claim = Claim::kRun;       // The claim that must fail.
};

std::vector<JudgeMutant> AllJudgeMutants();

// Returns the same mutants as a suite of the folder "check". The suite's checks
// are the claims.
MutantSuite JudgeMutants();

// Returns the built-in case of that name, with the fake trainer's model and
// data in place of LeNet and images. The case is never destroyed. Cost: the
// first call for a world size makes all of its cases; later calls are cheap.
const CheckCase& FakeCase(const std::string& name, int world_size);

// Returns the verdicts on the mutant; `check` is a FakeCase.
std::vector<Verdict> JudgeTrainer(const std::string& mutant,
                                  const CheckCase& check);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_
