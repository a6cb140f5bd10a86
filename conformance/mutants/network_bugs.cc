// Planted bugs of a whole network with batch norm.
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "conformance/mutants/bug_suites.h"
#include "conformance/mutants/planted_bug.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_mutants.h"
#include "conformance/network/plant_mutant.h"
#include "conformance/rejection.h"

namespace lockstep {
namespace {

// The diagnosis is that of the mutant's own check; empty if it did not reject.
absl::StatusOr<Caught> Plant(const NetworkMutant& mutant) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Rejection> rejections,
                            PlantNetworkMutant(mutant));
  Caught caught = CaughtBy(rejections);
  caught.diagnosis.clear();
  for (const Rejection& rejection : rejections) {
    if (rejection.check == mutant.check) caught.diagnosis = rejection.message;
  }
  return caught;
}

}  // namespace

BugSuite NetworkBugs() {
  BugSuite suite = {"network", NetworkCheckNames(), {}};
  for (const NetworkMutant& mutant : NetworkMutants()) {
    suite.bugs.push_back({suite.folder,
                          mutant.name,
                          mutant.bug,
                          {mutant.caught_by.begin(), mutant.caught_by.end()},
                          mutant.says,
                          [mutant] { return Plant(mutant); }});
  }
  return suite;
}

}  // namespace lockstep
