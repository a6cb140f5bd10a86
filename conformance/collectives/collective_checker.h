// Makes the calls of a collective on one rank, checks their results, and finds
// the cause of a wrong output.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CHECKER_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CHECKER_H_

#include <cstddef>
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
#include "conformance/mutant.h"
#include "conformance/rank_bytes.h"
#include "conformance/report/claim_recorder.h"

namespace lockstep::conformance {

// A rank's wrong output, of the right size.
struct WrongOutput {
  const CollectiveCase& call;
  AdditionOrder order;
  int world_size;
  int rank;
  const std::byte* got;
  const Bytes& want;
  const Bytes& before;  // The contents of the memory before the call.
};

// Returns ", as if ..." for the first cause that gives every bit of the output,
// or "". The causes, in this order:
//
//   - nothing was written, or all but the last element;
//   - the first and the last element were exchanged;
//   - another rank was the root;
//   - the sum was taken for the average;
//   - a rank's input was taken twice;
//   - the last part of it was taken twice, or read before it was written;
//   - the order of additions was that of another call or of other ranks. All
//     orders of up to four ranks are tried; of more, the forward and backward
//     orders from any rank.
//
// Cost: that of a few dozen references.
std::string CauseOfOutput(const WrongOutput& output);

// Explains likewise the memory of a rank that gets no output but was written:
// ", as if this rank were the root". got: as many bytes as the root's output
// has.
std::string CauseOfStrayOutput(const CollectiveCase& call, AdditionOrder order,
                               int world_size, int rank, const std::byte* got);

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

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CHECKER_H_
