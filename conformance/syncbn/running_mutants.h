// Mutants of the running statistics: a part of
// BatchNormMutants.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_RUNNING_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_RUNNING_MUTANTS_H_

#include <vector>

#include "conformance/syncbn/batch_norm_mutants.h"

namespace lockstep::conformance {

std::vector<BatchNormMutant> RunningMutants();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_RUNNING_MUTANTS_H_
