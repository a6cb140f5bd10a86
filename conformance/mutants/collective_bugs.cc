// Planted bugs of collectives.
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_checker.h"
#include "conformance/collectives/faulty_communicator.h"
#include "conformance/collectives/plant_fault.h"
#include "conformance/mutants/bug_suites.h"
#include "conformance/mutants/planted_bug.h"

namespace lockstep {
namespace {

// ", as if ..." at the end of what a check says; all of it if there is none.
std::string CauseIn(const std::string& diagnosis) {
  const size_t begin = diagnosis.find(", as if ");
  return begin == std::string::npos ? diagnosis : diagnosis.substr(begin);
}

// What the ranks say together: of those that name the same cause, the first.
absl::StatusOr<Caught> Together(const std::vector<absl::Status>& ranks) {
  Caught all;
  std::set<std::string> checks, causes;
  for (const absl::Status& status : ranks) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Caught caught, CaughtBy(status));
    if (caught.checks.empty()) continue;
    if (checks.insert(caught.checks[0]).second) {
      all.checks.push_back(caught.checks[0]);
    }
    if (!causes.insert(CauseIn(caught.diagnosis)).second) continue;
    absl::StrAppend(&all.diagnosis, all.diagnosis.empty() ? "" : "; ",
                    caught.diagnosis);
  }
  return all;
}

absl::StatusOr<Caught> Plant(CollectiveFault fault) {
  for (const CollectiveCase& call : CollectiveCases(kFaultyRanks)) {
    if (!ShowsIn(fault, call)) continue;
    LOCKSTEP_ASSIGN_OR_RETURN(const auto by_case,
                              CheckFaulty(fault, {&call, 1}));
    return Together(by_case[0]);
  }
  return absl::InternalError("it shows in no case");
}

}  // namespace

BugSuite CollectiveBugs() {
  BugSuite suite = {"collectives", CollectiveChecks(), {}};
  for (const CollectiveBug& bug : AllCollectiveBugs()) {
    std::vector<std::string> checks = {bug.check};
    checks.insert(checks.end(), bug.also.begin(), bug.also.end());
    suite.bugs.push_back({suite.folder, Name(bug.fault), bug.bug, checks,
                          bug.says,
                          [fault = bug.fault] { return Plant(fault); }});
  }
  return suite;
}

}  // namespace lockstep
