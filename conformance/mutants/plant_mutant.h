// Plants bugs in LeNet's training and asks the checks.
#ifndef LOCKSTEP_CONFORMANCE_MUTANTS_PLANT_MUTANT_H_
#define LOCKSTEP_CONFORMANCE_MUTANTS_PLANT_MUTANT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "conformance/rejection.h"
#include "conformance/training_run.h"

namespace lockstep {

// What the checks that reject it say of a run with the bug, in the order of
// AllChecks. The run has three ranks: 6, 6 and 5 samples a step, then one each
// in the last step of an epoch. Errors: the run's, and kInternal if a check
// failed otherwise than by kDataLoss.
absl::StatusOr<std::vector<Rejection>> PlantMutation(const Mutation& mutation);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_MUTANTS_PLANT_MUTANT_H_
