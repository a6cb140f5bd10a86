// Mutants of loading, which the checks of loaded samples must reject.
#ifndef LOCKSTEP_CONFORMANCE_LOADING_LOADING_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_LOADING_LOADING_MUTANTS_H_

#include "conformance/mutant.h"

namespace lockstep::conformance {

// Returns the mutants, each planted in loaders.
MutantSuite LoadingMutants();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_LOADING_LOADING_MUTANTS_H_
