// Makes calls of a collective on one rank, checks what they gave, and says what
// would have given a wrong output.
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

// What one rank got, of as many bytes as it should have.
struct WrongOutput {
  const CollectiveCase& call;
  AdditionOrder order;
  int world_size;
  int rank;
  const std::byte* got;
  const Bytes& want;
  const Bytes& before;  // What was there.
};

// ", as if ..." for the first cause that gives every bit of the output, else
// "". Those that are tried: nothing written, or not the last element; the first
// and the last element in each other's place; another root; the sum for an
// average; a rank's input, or the last part of it, taken twice; that part read
// before it was written; the order of another call, or of the ranks (of up to
// four in any order, else forwards or backwards from any rank).
// Cost: that of a few dozen references.
std::string CauseOfOutput(const WrongOutput& output);

// The same for the memory of a rank that gets no output, where it was written:
// as if this rank were the root. got: as many bytes as the root's output has.
std::string CauseOfStrayOutput(const CollectiveCase& call, AdditionOrder order,
                               int world_size, int rank, const std::byte* got);

// What is asked of each call, in this order.
inline constexpr const char* kCollectiveChecks[] = {"Output", "Input",
                                                    "Beside"};

// Where the buffers lie.
enum class Memory { kOrdinary, kGroup };

// Makes a call, and asks in this order:
//
//   Output  is the output the reference's to the bit?
//   Input   is an input that lies elsewhere as it was?
//   Beside  is what lies beside inputs and output as it was?
//
// Errors: the communicator's; kDataLoss if the answer is no. The message starts
// with the name, and has the case, the rank, the first wrong element, and the
// cause that explains the whole output, if there is one (CauseOfOutput).
using CollectiveChecker = std::function<absl::Status(const CollectiveCase&)>;

// Every rank of the group, which it borrows, makes the same calls of it.
absl::StatusOr<CollectiveChecker> MakeCollectiveChecker(
    Communicator& communicator, Memory memory,
    AdditionOrder order = AdditionOrder::kBySize);

// Every case of CollectiveCases, or the slice of them (slice.h) that `salt`
// draws, one after the other. The first error ends it. Gives what was asked, in
// bytes that a rank can hand back: of each case, its type.
absl::StatusOr<std::string> CheckCollectives(Communicator& communicator,
                                             Memory memory, uint64_t salt = 0);
absl::StatusOr<std::string> CheckCollectives(
    const CollectiveChecker& check, std::span<const CollectiveCase> cases);

// The claim that all operations are right to the bit, of each type. From the
// beginning of a test that asks it to its end.
class CollectiveClaims {
 public:
  CollectiveClaims(const std::string& backend, int world_size);

  // What CheckCollectives gave on each rank: of each type, as many cases as
  // every rank was asked. An error counts as none.
  void Add(std::span<const absl::StatusOr<std::string>> asked);

 private:
  std::map<DataType, std::unique_ptr<ClaimRecorder>> recorders_;
};

// Groups that mutants are planted around.
struct CollectiveRanks {
  RankRunner run;
  Memory memory = Memory::kOrdinary;
  AdditionOrder order = AdditionOrder::kBySize;
  // Memory that is reduced is aligned to its elements.
  bool aligned = false;
};
CollectiveRanks CollectivesOnThreads();

// `call` as a group can take it whose reductions want aligned elements.
CollectiveCase Aligned(CollectiveCase call);

// Mutants of a group, each in groups of three ranks: on NCCL's, all but those
// of uniform calls, which a ring does not know. What the first of `checks`
// must say, some rank's check says; the other checks are those that reject it
// on other ranks, in the first case in which it shows.
MutantSuite CollectiveMutants(
    const CollectiveRanks& ranks = CollectivesOnThreads());

// One of them, for the controls of other suites: `real`, which it borrows, but
// that the last element of what a rank gets is not written.
std::unique_ptr<Communicator> LoseTail(Communicator& real);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CHECKER_H_
