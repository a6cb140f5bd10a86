// Parts that the tables of networks' mutants share, and wrong networks that the
// causes use too.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "conformance/mutant.h"
#include "conformance/network/network_run.h"
#include "conformance/training/run.h"
#include "models/model.h"
#include "models/networks/network.h"

namespace lockstep::conformance {

// Plants the mutation in one step of ranks that share the batch as `deal` says.
Mutant Planted(Mutant mutant, const std::vector<int64_t>& deal,
               const Mutation& mutation,
               const TestedNetwork& tested = TestedResNet());

// Returns a mutation that sums gradients over the ranks, except those of the
// parameters that `of` picks: there each rank keeps its own.
Mutation LeaveGradients(const TestedNetwork& tested,
                        const std::function<bool(const ParameterSpec&)>& of);

// Returns the mutants of attention, masks, shortcuts and strides.
std::vector<Mutant> ArchitectureMutants();

// Returns a ResNet with the stride of each bottleneck in its first convolution,
// of 1x1 (He et al. 2015), in place of the second, of 3x3. The tensors and
// their shapes are the same, but the function is another. Returns null if no
// bottleneck of the network has a stride.
std::unique_ptr<const Network> WithStrideInFirstConvolution(
    const Network& network);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_
