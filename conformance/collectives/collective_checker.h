// Makes the suite's calls on one rank and checks what they gave.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CHECKER_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CHECKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "collectives/group_buffer.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_reference.h"

namespace lockstep {

// Where the buffers lie.
enum class Memory { kOrdinary, kGroup };

// Borrows the communicator. Every rank of the group makes the same calls of it.
class CollectiveChecker {
 public:
  static absl::StatusOr<std::unique_ptr<CollectiveChecker>> Create(
      Communicator& communicator, Memory memory, Order order = Order::kBySize);

  // Makes the call. Errors: the communicator's; kDataLoss if the output is not
  // the reference's to the bit, if anything beside the output was written, or
  // if an input that lies elsewhere was. The message names the case, the rank
  // and the first wrong element.
  absl::Status Check(const CollectiveCase& call);

 private:
  CollectiveChecker(Communicator& communicator, Order order)
      : communicator_(communicator), order_(order) {}

  // One case as this rank sees it.
  struct OwnCase {
    const CollectiveCase& call;
    Bytes input_values;
    std::optional<Bytes> output_values;  // As it must become.
    std::byte* input;
    std::byte* output;
    bool apart;  // Input and output do not overlap.
    // The parts of inputs_ and outputs_ that are watched.
    std::span<std::byte> inputs;
    std::span<std::byte> outputs;
  };
  OwnCase OwnCaseOf(const CollectiveCase& call) const;
  absl::Status Make(const OwnCase& own);
  absl::Status CheckOutput(const OwnCase& own) const;
  absl::Status CheckBeside(const OwnCase& own) const;
  absl::Status Wrong(const CollectiveCase& call, const std::string& what) const;

  Communicator& communicator_;
  const Order order_;
  GroupBuffer group_memory_;
  std::unique_ptr<std::byte[]> ordinary_memory_;
  std::span<std::byte> inputs_;
  std::span<std::byte> outputs_;
};

// Every case, one after the other. The first error ends it.
absl::Status CheckCollectives(Communicator& communicator, Memory memory);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CHECKER_H_
