// Planted bugs of a trainer that `check` judges.
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "conformance/check/causes.h"
#include "conformance/check/judge_faults.h"
#include "conformance/check/verdict.h"
#include "conformance/mutants/bug_suites.h"
#include "conformance/mutants/planted_bug.h"

namespace lockstep {
namespace {

// How a diagnosis begins, so that no cause's name is the end of another's.
std::string Named(Cause cause) {
  return absl::StrCat("cause ", CauseName(cause), ": ");
}

absl::StatusOr<Caught> Plant(const JudgeFault& fault) {
  Caught caught;
  for (const Verdict& verdict :
       JudgeFaulty(fault, FakeCase(fault.case_name, /*world_size=*/2))) {
    if (verdict.outcome != Outcome::kFailed) continue;
    caught.checks.push_back(ClaimName(verdict.claim));
    if (!caught.diagnosis.empty()) continue;
    caught.diagnosis =
        absl::StrCat(Named(verdict.cause), verdict.what, " ", verdict.why);
  }
  return caught;
}

}  // namespace

BugSuite JudgeBugs() {
  BugSuite suite = {"check", {}, {}};
  for (const Claim claim : kAllClaims) {
    suite.checks.push_back(ClaimName(claim));
  }
  for (const JudgeFault& fault : AllJudgeFaults()) {
    suite.bugs.push_back({suite.folder,
                          fault.name,
                          fault.planted,
                          {ClaimName(fault.claim)},
                          Named(fault.cause),
                          [fault] { return Plant(fault); }});
  }
  return suite;
}

}  // namespace lockstep
