// Every folder's mutants.
#ifndef LOCKSTEP_CONFORMANCE_MUTANTS_ALL_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_MUTANTS_ALL_MUTANTS_H_

#include <vector>

#include "conformance/mutant.h"

namespace lockstep {

// Not to be called, nor a mutant planted, by two threads at once.
std::vector<MutantSuite> AllMutantSuites();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_MUTANTS_ALL_MUTANTS_H_
