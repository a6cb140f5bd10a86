// Mutants of a group: what the checks of collectives must reject.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_MUTANTS_H_

#include <memory>

#include "collectives/communicator.h"
#include "conformance/mutant.h"

namespace lockstep {

// One of them, for the controls of other suites: `real`, which it borrows, but
// that the last element of what a rank gets is not written.
std::unique_ptr<Communicator> LoseTail(Communicator& real);

// Each in groups of three ranks. What the first of `checks` must say, some
// rank's check says; the other checks are those that reject it on other ranks,
// in the first case in which it shows.
MutantSuite CollectiveMutants();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_MUTANTS_H_
