// Mutants of whole epochs: a part of AllSamplingMutants.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_MUTANTS_H_

#include <vector>

#include "conformance/sampling/sampling_mutants.h"

namespace lockstep::conformance {

// Returns the mutants of whole epochs, without the functions that plant them.
std::vector<SamplingMutant> EpochMutants();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_EPOCH_MUTANTS_H_
