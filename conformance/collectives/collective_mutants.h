// Mutants of a group: what the checks of collectives must reject.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_MUTANTS_H_

#include <memory>

#include "absl/status/status.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "conformance/decorators.h"
#include "conformance/mutant.h"

namespace lockstep {

enum class CollectiveMutation {
  kSwappedChunks,    // The first and the last element change places.
  kLostTail,         // The last element is not written.
  kWrongRoot,        // The rank after the root takes its part.
  kDoubleCount,      // Rank 0's input is reduced twice.
  kStaleBuffer,      // The last rank keeps what it had.
  kOneTooMany,       // One byte after the output is written.
  kWritesInput,      // The first byte of the input changes.
  kOrderOfArrival,   // The ranks are added in another order.
  kUnscaledAverage,  // An average is the sum.
  kOrderBySize,      // A uniform call adds in the order of its size.
};

// Borrows a group that works.
class MutatedCommunicator : public ForwardingCommunicator {
 public:
  MutatedCommunicator(Communicator& real, CollectiveMutation mutation)
      : ForwardingCommunicator(real), mutation_(mutation) {}

  absl::Status Run(const Collective& call) override;

 private:
  bool GetsOutput(const Collective& call) const;
  absl::Status RunWithRankZeroTwice(const Collective& call);
  absl::Status RunWithoutOutput(const Collective& call);
  absl::Status RunInReverseOrder(const Collective& call);

  const CollectiveMutation mutation_;
  std::unique_ptr<Communicator> reversed_;
};

// All of the above, in groups of three ranks. What the first of `checks` must
// say, some rank's check says; the other checks are those that reject it on
// other ranks, in the first case in which it shows.
MutantSuite CollectiveMutants();

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_MUTANTS_H_
