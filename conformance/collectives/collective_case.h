// The calls that test a group, with their inputs and expected outputs
// (collectives/algorithms/collective_reference.h).
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CASE_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CASE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/data_types.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/collective.h"

namespace lockstep::conformance {

// The values of the ranks' inputs.
enum class ValueKind {
  kRough,    // Numbers whose sum has other bits in another order.
  kSpecial,  // NaN, infinities, zeros of both signs, the largest and smallest.
};

// One call, the same on every rank.
struct CollectiveCase {
  Operation operation = Operation::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // Used if the operation reduces.
  // The number of elements, as Collective's AgreedCount. With `unequal`, rank r
  // contributes count + r elements, and rank 0 none.
  int64_t count = 0;
  bool unequal = false;  // Only for kAllGather.
  bool uniform = false;  // For an in-place kAllReduce: UniformAllReduce.
  int root = 0;          // The root, or the source of kSend.
  int distance = 1;      // The destination of kSend minus its source, modulo P.
  bool in_place = false;
  // The distance of each buffer from an aligned address, in bytes.
  int64_t misalignment = 0;
  ValueKind values = ValueKind::kRough;
};

// Returns, for example, "AllReduce(float32[7], sum), in place, 1 byte off".
std::string ToString(const CollectiveCase& call);

// Returns every operation x type x reduction x {in place, out of place}. Each
// combination has counts that are zero, one, odd, in tree order and in ring
// order. One of the counts is tried with every root. kSend stands for kSend and
// kReceive.
std::vector<CollectiveCase> CollectiveCases(int world_size);

// Returns the slice of CollectiveCases (base/slice.h) that `salt` selects. A
// case costs the square of the number of ranks, so larger groups get fewer
// cases. Every slice contains a message of several slots for each operation, an
// unequal AllGather and a Barrier.
std::vector<CollectiveCase> SomeCollectiveCases(int world_size, uint64_t salt);

bool HasRoot(Operation operation);

// Returns the destination of kSend.
int DestinationOf(const CollectiveCase& call, int world_size);

// Returns the input of one rank. For kSend it is the source's input.
Bytes InputOf(const CollectiveCase& call, int world_size, int rank);

// Returns the number of elements that each rank contributes to an AllGather.
std::vector<int64_t> CountsOf(const CollectiveCase& call, int world_size);

// The inputs that a wrong reduction takes.
struct InputMistake {
  // The input of rank ranks[r] replaces that of rank r. Empty: each rank's own.
  std::vector<int> ranks;
  // The rank whose input is first reduced with itself. -1: none.
  int twice = -1;
  // The rank whose last part is zero, as memory that was not yet written. -1:
  // none.
  int unwritten = -1;
  bool last_part = false;  // Restricts `twice` to the last part.
};

// Returns the beginning of the last of P parts of an input: the last rank's
// part when the ranks divide a reduction.
constexpr int64_t LastPartOf(int64_t count, int world_size) {
  return count - count / world_size;
}

// Returns the output of one rank. Returns none if the rank gets no output: its
// memory must then not change. `taken` simulates a group's mistake.
std::optional<Bytes> OutputOf(const CollectiveCase& call, AdditionOrder order,
                              int world_size, int rank,
                              const InputMistake& taken = {});

// Returns the first element that differs, as text, or none. Two NaN are equal.
// Other values are equal only if all their bits are.
std::optional<std::string> Difference(const CollectiveCase& call,
                                      const std::byte* got, const Bytes& want);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_CASE_H_
