// Mutants of a network's layers, and wrong networks that the causes use too.
#ifndef LOCKSTEP_CONFORMANCE_NETWORK_ARCHITECTURE_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_NETWORK_ARCHITECTURE_MUTANTS_H_

#include <memory>
#include <vector>

#include "conformance/mutant.h"
#include "models/networks/network.h"

namespace lockstep::conformance {

// Returns the mutants of attention, masks, shortcuts and strides.
std::vector<Mutant> ArchitectureMutants();

// Returns a ResNet with the stride of each bottleneck in its first convolution,
// of 1x1 (He et al. 2015), in place of the second, of 3x3. The tensors and
// their shapes are the same, but the function is another. Returns null if no
// bottleneck of the network has a stride.
std::unique_ptr<const Network> WithStrideInFirstConvolution(
    const Network& network);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_NETWORK_ARCHITECTURE_MUTANTS_H_
