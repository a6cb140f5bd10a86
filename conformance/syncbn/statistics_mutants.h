// Mutants of the batch's sums, its statistics and y: a part of
// BatchNormMutants.
#ifndef LOCKSTEP_CONFORMANCE_SYNCBN_STATISTICS_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_SYNCBN_STATISTICS_MUTANTS_H_

#include <vector>

#include "conformance/syncbn/batch_norm_mutants.h"

namespace lockstep::conformance {

std::vector<BatchNormMutant> StatisticsMutants();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SYNCBN_STATISTICS_MUTANTS_H_
