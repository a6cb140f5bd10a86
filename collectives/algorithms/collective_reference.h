// What collectives must give, computed by one rank that knows all inputs, from
// the definitions in collective.h and schedule.h. Shares no code
// with the product: neither its index arithmetic nor its rounding.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_COLLECTIVE_REFERENCE_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_COLLECTIVE_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/data_types.h"
#include "collectives/collective.h"

namespace lockstep {

// Elements of any type.
using Bytes = std::vector<std::byte>;

// An element as a number: exactly, but for int64.
double ElementAt(DataType type, const std::byte* element);

// Stores the element that is nearest to `value`, ties to even; NaN, infinities
// and the sign of zero are kept. Of an integer type, `value` is such a number.
void SetElement(DataType type, double value, std::byte* element);

// How a reduction adds: rank by rank, or pairs until a power of two is left and
// then neighbours until one is.
enum class FoldOrder { kChain, kTree };

// The reduction of inputs of one size, of at least one rank: float32 in
// float64, which is then rounded; 16 bits in float32; integers modulo 2^64.
// Every NaN that arithmetic makes is the positive quiet one without a payload.
Bytes Reference(DataType type, ReduceOp op, FoldOrder order,
                const std::vector<Bytes>& inputs);

// The order in which the additions of a call are expected: as schedule.h says
// of its size and kind, or always the one.
enum class AdditionOrder { kBySize, kRing, kTree };

// What the elements of the inputs are.
enum class CallInput {
  kAny,    // FillInput's.
  kZeros,  // Floating-point zeros of both signs.
  kExact,  // Small numbers, whose reduction by up to 5 ranks is exact.
};

// A call of all ranks. kSend stands for a Send of `root` and a Receive of the
// rank `hops` after it; the others do nothing, nor does that one if it is root.
struct CheckedCall {
  Operation operation;
  DataType type = DataType::kInt64;
  ReduceOp op = ReduceOp::kSum;
  int64_t count = 0;  // AgreedCount, unless there are counts.
  int root = 0;
  bool in_place = false;  // On the root, where it is the only one to have both.
  std::vector<int64_t> counts = {};  // Of an AllGather of unequal counts.
  int hops = 1;
  CallInput input = CallInput::kAny;
  bool rounds = false;   // Results of kExact may be off by P + 2 roundings.
  bool uniform = false;  // UniformAllReduce.

  friend bool operator==(const CheckedCall&, const CheckedCall&) = default;
};

// The output of one rank, of the ranks' inputs; of calls with a root that gives
// the input, only that one's matters. None where the rank gets no output.
std::optional<Bytes> ReferenceOutput(const CheckedCall& call,
                                     AdditionOrder order, int rank,
                                     const std::vector<Bytes>& inputs);

// n elements for each rank, the same in every run: of a middle size and of both
// signs, so that sums in another order round otherwise, but for one in eight,
// which is any bits: infinity, NaN, subnormal numbers, the largest integers.
std::vector<Bytes> DrawInputs(DataType type, int world_size, int64_t n);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_COLLECTIVE_REFERENCE_H_
