// Communicators with one planted fault each: what the suite must reject.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_MUTANTS_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "conformance/collectives/collective_case.h"

namespace lockstep {

enum class CollectiveFault {
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

inline constexpr CollectiveFault kAllCollectiveFaults[] = {
    CollectiveFault::kSwappedChunks,   CollectiveFault::kLostTail,
    CollectiveFault::kWrongRoot,       CollectiveFault::kDoubleCount,
    CollectiveFault::kStaleBuffer,     CollectiveFault::kOneTooMany,
    CollectiveFault::kWritesInput,     CollectiveFault::kOrderOfArrival,
    CollectiveFault::kUnscaledAverage, CollectiveFault::kOrderBySize};

const char* Name(CollectiveFault fault);  // "SwappedChunks".

// Whether the fault must show in the case's result, in a group of 3.
bool ShowsIn(CollectiveFault fault, const CollectiveCase& call);

// Borrows a group that works.
class FaultyCommunicator : public Communicator {
 public:
  FaultyCommunicator(Communicator& real, CollectiveFault fault)
      : real_(real), fault_(fault) {}

  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  absl::Status Run(const Collective& call) override;
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override {
    return real_.Allocate(bytes, site);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key,
                                                      CallSite site) override {
    return real_.Split(color, key, site);
  }

 private:
  bool GetsOutput(const Collective& call) const;
  absl::Status RunWithRankZeroTwice(const Collective& call);
  absl::Status RunWithoutOutput(const Collective& call);
  absl::Status RunInReverseOrder(Collective call);

  Communicator& real_;
  const CollectiveFault fault_;
  std::unique_ptr<Communicator> reversed_;
};

// Plants faults in groups and asks the suite.

// A fault and what must become of it where it shows.
struct CollectiveBug {
  CollectiveFault fault;
  std::string bug;    // What is wrong, in a phrase.
  std::string check;  // Which rejects it on some rank.
  std::string says;   // What some rank's check says of it.
  // Those that reject it on other ranks, in the first case in which it shows.
  std::vector<std::string> also = {};
};
std::vector<CollectiveBug> AllCollectiveBugs();

// Ranks of the groups that faults are planted in, as ShowsIn has it.
inline constexpr int kFaultyRanks = 3;

// What the check says of each case on each rank: by case, then by rank. Errors:
// those of a case that are not kDataLoss.
absl::StatusOr<std::vector<std::vector<absl::Status>>> CheckFaulty(
    CollectiveFault fault, std::span<const CollectiveCase> cases);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_MUTANTS_H_
