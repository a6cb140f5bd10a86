// Planted bugs of evaluation.
#include "conformance/evaluation_check.h"
#include "conformance/evaluation_mutants.h"
#include "conformance/mutants/bug_suites.h"
#include "conformance/mutants/planted_bug.h"

namespace lockstep {

BugSuite EvaluationBugs() {
  BugSuite suite = {"evaluation", EvaluationChecks(), {}};
  for (const EvaluationMutant& mutant : AllEvaluationMutants()) {
    suite.bugs.push_back(
        {suite.folder,
         mutant.name,
         mutant.bug,
         {mutant.check},
         mutant.says,
         [mutant] { return CaughtBy(PlantEvaluationMutant(mutant)); }});
  }
  return suite;
}

}  // namespace lockstep
