// Mutants of states: a part of AllSamplingMutants.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_RESUME_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_RESUME_MUTANTS_H_

#include <vector>

#include "conformance/sampling/sampling_mutants.h"

namespace lockstep::conformance {

// Returns the mutants of states, without the functions that plant them.
std::vector<SamplingMutant> ResumeMutants();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_RESUME_MUTANTS_H_
