// The faults that Judge must name: each planted in the fake trainer.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_

#include <string>
#include <vector>

#include "conformance/check/cases/check_case.h"
#include "conformance/check/judge/fake_trainer.h"
#include "conformance/check/judge/verdict.h"

namespace lockstep {

struct JudgeFault {
  std::string name;
  std::string planted;  // What is wrong, in a phrase.
  FakeFault fault = FakeFault::kNone;
  std::string case_name;       // The case that is there for it.
  Claim claim = Claim::kRun;   // The one that must fail.
  Cause cause = Cause::kNone;  // The only one to be named.
};

std::vector<JudgeFault> AllJudgeFaults();

// The built-in case of that name WithFakeModel.
CheckCase FakeCase(const std::string& name, int world_size);

// The verdicts on a trainer with the fault; `check` is FakeCase(case_name).
std::vector<Verdict> JudgeFaulty(const JudgeFault& fault,
                                 const CheckCase& check);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JUDGE_JUDGE_MUTANTS_H_
