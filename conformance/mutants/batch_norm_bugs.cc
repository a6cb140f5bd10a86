// Planted bugs of batch norm.
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "conformance/mutants/bug_suites.h"
#include "conformance/mutants/planted_bug.h"
#include "conformance/syncbn/batch_norm_case.h"
#include "conformance/syncbn/batch_norm_checker.h"
#include "conformance/syncbn/batch_norm_exam.h"
#include "conformance/syncbn/faulty_batch_norm.h"
#include "conformance/syncbn/plant_fault.h"

namespace lockstep {
namespace {

absl::StatusOr<Caught> Plant(const BatchNormFault& fault) {
  for (const BatchNormProblem& problem : FaultProblems(fault)) {
    for (const BatchNormVariant& variant : AllVariants()) {
      if (!fault.shows(problem, variant)) continue;
      return CaughtBy(CheckFaulty(fault, MakeExam(problem), {variant})[0]);
    }
  }
  return absl::InternalError("it shows in no case");
}

}  // namespace

BugSuite BatchNormBugs() {
  BugSuite suite = {"syncbn", BatchNormChecks(), {}};
  for (const BatchNormFault& fault : AllBatchNormFaults()) {
    suite.bugs.push_back({suite.folder,
                          fault.name,
                          fault.bug,
                          {fault.check},
                          fault.says,
                          [fault] { return Plant(fault); }});
  }
  return suite;
}

}  // namespace lockstep
