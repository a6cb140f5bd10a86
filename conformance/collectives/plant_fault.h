// Plants faults in groups and asks the suite.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_PLANT_FAULT_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_PLANT_FAULT_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/faulty_communicator.h"

namespace lockstep {

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

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_PLANT_FAULT_H_
