// Mutants of a group, which the checks of collectives must reject.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_MUTANTS_H_

#include <memory>

#include "collectives/communicator.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_checker.h"
#include "conformance/mutant.h"
#include "conformance/rank_bytes.h"

namespace lockstep::conformance {

// The groups around which mutants are planted.
struct CollectiveRanks {
  RankRunner run;
  Memory memory = Memory::kOrdinary;
  AdditionOrder order = AdditionOrder::kBySize;
  // Whether reduced memory must be aligned to its elements.
  bool aligned = false;
};
CollectiveRanks CollectivesOnThreads();

// Returns `call`, aligned for a group whose reductions need aligned elements.
CollectiveCase Aligned(CollectiveCase call);

// Returns the mutants of a group, each in groups of three ranks. NCCL's groups
// have no mutants of uniform calls, because a ring does not distinguish these.
// Some rank's check must fail as the first of `checks`, with the mutant's
// words. The other checks reject the mutant on other ranks, in the first case
// in which it shows.
MutantSuite CollectiveMutants(
    const CollectiveRanks& ranks = CollectivesOnThreads());

// Returns one of the mutants, for the controls of other suites. The group
// borrows `real`, and does not write the last element of a rank's output.
std::unique_ptr<Communicator> LoseTail(Communicator& real);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_MUTANTS_H_
