// Mutants of networks' data-parallel training, and the parts that their tables
// share.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "conformance/mutant.h"
#include "conformance/network/network_run.h"
#include "conformance/training/run.h"
#include "models/model.h"

namespace lockstep::conformance {

// Plants the mutation in one step of ranks that share the batch as `deal` says.
Mutant Planted(Mutant mutant, const std::vector<int64_t>& deal,
               const Mutation& mutation,
               const TestedNetwork& tested = TestedResNet());

// Returns a mutation that sums gradients over the ranks, except those of the
// parameters that `of` picks: there each rank keeps its own.
Mutation LeaveGradients(const TestedNetwork& tested,
                        const std::function<bool(const ParameterSpec&)>& of);

// Returns mutants of networks' data-parallel training, each planted where it
// must show. Mutants of batch norm are planted in ResNet-18, those of
// attention, layer norm and masks in a vision transformer. The diagnosis is
// that of a mutant's first check.
MutantSuite NetworkMutants();

// Returns a mutation in which a rank without samples skips the model's step,
// because it has nothing to compute. No run with this mutation succeeds.
Mutation SkipWhereEmpty();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_
