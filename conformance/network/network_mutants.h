// Parts that the tables of networks' mutants share, and the descriptions of
// wrong networks that the causes know too.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "conformance/mutant.h"
#include "conformance/network/network_run.h"
#include "conformance/training_run.h"
#include "models/model.h"
#include "models/networks/network.h"

namespace lockstep::conformance {

// Plants the mutation in one step of ranks that share the batch as `deal` says.
Mutant Planted(Mutant mutant, const std::vector<int64_t>& deal,
               const Mutation& mutation,
               const TestedNetwork& tested = TestedResNet());

// Sums gradients over the ranks, but leaves each rank its own gradients of the
// parameters that `of` picks.
Mutation LeaveGradients(const TestedNetwork& tested,
                        const std::function<bool(const ParameterSpec&)>& of);

// Mutants of attention, masks, shortcuts and strides.
std::vector<Mutant> ArchitectureMutants();

// Describes a ResNet again, with the stride of each bottleneck in its first
// convolution, of 1x1 (He et al. 2015), in place of the second, of 3x3: the
// same tensors and the same shapes, but another function. Null if no bottleneck
// of the network has a stride.
std::unique_ptr<const Network> WithStrideInFirstConvolution(
    const Network& network);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_NETWORK_MUTANTS_H_
