// Mutants of ResNet-18's data-parallel training with batch norm.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_

#include "conformance/mutant.h"
#include "conformance/network/network_run.h"

namespace lockstep {

// Each is planted where it must show. What the first of its checks says is the
// diagnosis. Rounding is measured on one rank without the mutation, once a
// process; or with it, where it is in the arithmetic of one rank too. Cost:
// seconds, at ResNet-18's own width.
MutantSuite NetworkMutants();

// A rank without samples leaves the model's step out, as one that has nothing
// to compute. No run of it ends well.
NetworkMutation SkipWhereEmpty();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_
