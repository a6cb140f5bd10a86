// Mutants of the gradients, the calls and the memory of a layer: a part of
// BatchNormMutants.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_GRADIENT_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_GRADIENT_MUTANTS_H_

#include <vector>

#include "conformance/syncbn/batch_norm_mutants.h"

namespace lockstep::conformance {

std::vector<BatchNormMutant> GradientMutants();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_GRADIENT_MUTANTS_H_
