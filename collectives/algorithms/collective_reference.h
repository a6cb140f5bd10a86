// The results that collectives must give, computed by one rank that knows all
// inputs, from the definitions in collective.h and schedule.h. Shares no code
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

// The bytes of elements of any type.
using Bytes = std::vector<std::byte>;

// Returns an element as a number: exactly, except for int64.
double ElementAt(DataType type, const std::byte* element);

// Stores the element that is nearest to `value`, ties to even. NaN, infinities
// and the sign of zero are kept. For an integer type, `value` must be a number
// of that type.
void SetElement(DataType type, double value, std::byte* element);

// Returns the first element in which two results of one size differ, or -1. All
// NaN count as equal.
int64_t FirstDifference(const Bytes& a, const Bytes& b, DataType type);

// The order of a reduction. kChain adds rank by rank. kTree adds pairs until a
// power of two is left, then neighbours until one is left.
enum class FoldOrder { kChain, kTree };

// Returns the reduction of inputs of one size, from at least one rank. Float32
// is reduced in float64, which is then rounded; 16-bit floats in float32;
// integers modulo 2^64. Every NaN that arithmetic makes is the positive quiet
// one without a payload.
Bytes Reference(DataType type, ReduceOp op, FoldOrder order,
                const std::vector<Bytes>& inputs);

// The order of additions that a test expects of a call: the order that
// schedule.h gives for its size and kind, or always the ring or the tree.
enum class AdditionOrder { kBySize, kRing, kTree };

// The elements of the inputs.
enum class CallInput {
  kAny,    // The elements of FillInput.
  kZeros,  // Floating-point zeros of both signs.
  kExact,  // Small numbers: reductions of up to 5 ranks are exact.
};

// A call of all ranks. kSend stands for a Send by `root` and a Receive by the
// rank `hops` after it. Other ranks make no call. If that rank is `root`
// itself, no rank makes a call.
struct CheckedCall {
  Operation operation;
  DataType type = DataType::kInt64;
  ReduceOp op = ReduceOp::kSum;
  int64_t count = 0;  // AgreedCount, unless `counts` is set.
  int root = 0;
  // In calls with a root, true only on the root, which alone has both buffers.
  bool in_place = false;
  // The elements by rank in an AllGather of unequal counts.
  std::vector<int64_t> counts = {};
  int hops = 1;
  CallInput input = CallInput::kAny;
  bool rounds = false;   // Results of kExact may be off by P + 2 roundings.
  bool uniform = false;  // Whether it is a UniformAllReduce.

  friend bool operator==(const CheckedCall&, const CheckedCall&) = default;
};

// Returns the output of one rank for the ranks' inputs. If the root alone gives
// the input, only the root's input matters. None if the rank gets no output.
std::optional<Bytes> ReferenceOutput(const CheckedCall& call,
                                     AdditionOrder order, int rank,
                                     const std::vector<Bytes>& inputs);

// Returns n elements for each rank, the same in every run. Most have a middle
// size and either sign, so that sums in another order round differently. One in
// eight is any bits: infinity, NaN, subnormal numbers, the largest integers.
std::vector<Bytes> DrawInputs(DataType type, int world_size, int64_t n);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_COLLECTIVE_REFERENCE_H_
