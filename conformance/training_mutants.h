// The planted bugs: each a mistake that somebody has made in data-parallel
// training, put around the product's parts and never inside them, with the
// checks that must reject it.
#ifndef LOCKSTEP_CONFORMANCE_TRAINING_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_TRAINING_MUTANTS_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "conformance/rejection.h"
#include "conformance/training_run.h"

namespace lockstep {

struct Mutant {
  std::string name;
  std::string bug;  // What is wrong, in a phrase.
  Mutation mutation;
  // The names of exactly the checks (AllChecks) that reject it.
  std::set<std::string> caught_by;
  // What the first of their messages says of it.
  std::string says;
};

// In gradients on their way through a collective; in the broadcast.
std::vector<Mutant> CommunicatorMutants();
// In what a step computes; in the settings of the run.
std::vector<Mutant> ModelMutants();
// In which samples a rank draws.
std::vector<Mutant> SamplerMutants();

// All of them.
std::vector<Mutant> AllMutants();

// Plants bugs in LeNet's training and asks the checks.

// What the checks that reject it say of a run with the bug, in the order of
// AllChecks. The run has three ranks: 6, 6 and 5 samples a step, then one each
// in the last step of an epoch. Errors: the run's, and kInternal if a check
// failed otherwise than by kDataLoss.
absl::StatusOr<std::vector<Rejection>> PlantMutation(const Mutation& mutation);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_TRAINING_MUTANTS_H_
