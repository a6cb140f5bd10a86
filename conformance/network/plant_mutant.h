// Plants bugs in the network's training and asks the checks.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_PLANT_MUTANT_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_PLANT_MUTANT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "conformance/network/network_mutants.h"
#include "conformance/rejection.h"

namespace lockstep {

// What the checks that reject it say of the mutant's run, in the order of
// NetworkCheckNames. Rounding is measured on one rank without the bug, once a
// process, or with it, if it is `everywhere`. Cost: seconds. Errors: the
// product's, and kInternal if a check failed otherwise than by kDataLoss.
absl::StatusOr<std::vector<Rejection>> PlantNetworkMutant(
    const NetworkMutant& mutant);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_PLANT_MUTANT_H_
