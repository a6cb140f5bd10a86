// Makes the calls of a collective on one rank, and checks their results.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CHECKER_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CHECKER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "collectives/communicator.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/report/claim_recorder.h"

namespace lockstep::conformance {

// The checks of each call, in this order.
inline constexpr const char* kCollectiveChecks[] = {"Output", "Input",
                                                    "Beside"};

// The memory in which the buffers lie.
enum class Memory { kOrdinary, kGroup };

// Makes a call, and checks in this order:
//
//   Output  The output is the reference's, to the bit.
//   Input   An input that does not overlap the output is unchanged.
//   Beside  The memory beside inputs and output is unchanged.
//
// Errors: the communicator's; kDataLoss if a check fails. The message starts
// with the check's name. It contains the case, the rank, the first wrong
// element, and the cause that explains the whole output, if there is one
// (CauseOfOutput).
using CollectiveChecker = std::function<absl::Status(const CollectiveCase&)>;

// Creates a checker, which borrows the group. Every rank must make the same
// calls.
absl::StatusOr<CollectiveChecker> MakeCollectiveChecker(
    Communicator& communicator, Memory memory,
    AdditionOrder order = AdditionOrder::kBySize);

// Runs every case of CollectiveCases, or the slice of them (slice.h) that
// `salt` selects, one after the other. The first error ends the run. Returns
// one byte per case, the case's type, so that a rank can hand the result back.
absl::StatusOr<std::string> CheckCollectives(Communicator& communicator,
                                             Memory memory, uint64_t salt = 0);
absl::StatusOr<std::string> CheckCollectives(
    const CollectiveChecker& check, std::span<const CollectiveCase> cases);

// Records the claim that all operations are right to the bit, for each type.
// Lives from the beginning of a test to its end.
class CollectiveClaims {
 public:
  CollectiveClaims(const std::string& backend, int world_size);

  // Adds the results of CheckCollectives on each rank. For each type, counts
  // the cases that every rank has run. An error counts as none.
  void Add(std::span<const absl::StatusOr<std::string>> asked);

 private:
  std::map<DataType, std::unique_ptr<ClaimRecorder>> recorders_;
};

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CHECKER_H_
