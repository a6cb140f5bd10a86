// Planted bugs of LeNet's training.
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "conformance/checks.h"
#include "conformance/mutants/bug_suites.h"
#include "conformance/mutants/mutants.h"
#include "conformance/mutants/plant_mutant.h"
#include "conformance/mutants/planted_bug.h"
#include "conformance/rejection.h"

namespace lockstep {

BugSuite TrainingBugs() {
  BugSuite suite = {"training", {}, {}};
  for (const Check& check : AllChecks()) suite.checks.push_back(check.name);
  for (const Mutant& mutant : AllMutants()) {
    suite.bugs.push_back(
        {suite.folder,
         mutant.name,
         mutant.bug,
         {mutant.caught_by.begin(), mutant.caught_by.end()},
         mutant.says,
         [mutation = mutant.mutation]() -> absl::StatusOr<Caught> {
           LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Rejection> rejections,
                                     PlantMutation(mutation));
           return CaughtBy(rejections);
         }});
  }
  return suite;
}

}  // namespace lockstep
