// Mutants of LeNet's data-parallel training.
#ifndef LOCKSTEP_CONFORMANCE_TRAINING_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_TRAINING_MUTANTS_H_

#include <vector>

#include "conformance/mutant.h"
#include "conformance/training_run.h"

namespace lockstep {

struct TrainingMutant {
  Mutant mutant;  // Not yet of a suite.
  Mutation mutation;
};

// How gradients and parameters travel (communicator_mutants.cc); what a step
// computes, and with which settings; which samples a rank draws.
std::vector<TrainingMutant> AllTrainingMutants();

// The first of these three.
std::vector<TrainingMutant> CommunicatorMutants();

// All of them, of the checks in AllChecks(); each is planted in a run of three
// ranks. Its `says` is of the first check that rejects it.
MutantSuite TrainingMutants();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_TRAINING_MUTANTS_H_
