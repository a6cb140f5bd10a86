// What a reduction should give, one element at a time, and operands to try it
// on.
#ifndef LOCKSTEP_COLLECTIVES_ALGORITHMS_REDUCTION_REFERENCE_H_
#define LOCKSTEP_COLLECTIVES_ALGORITHMS_REDUCTION_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/data_types.h"
#include "collectives/collective.h"

namespace lockstep {

// Elements of any type.
using Bytes = std::vector<std::byte>;

enum class FoldOrder { kChain, kTree };  // Of Fold, and of FoldTree.

// The reduction of inputs of one size, of at least one rank, from the
// definitions in collective.h and schedule.h: float32 in float64, which is then
// rounded. Every NaN that arithmetic makes is the positive quiet one without a
// payload.
Bytes Reference(DataType type, ReduceOp op, FoldOrder order,
                const std::vector<Bytes>& inputs);

// n elements for each rank, the same in every run: of a middle size and of both
// signs, so that sums in another order round otherwise, but for one in eight,
// which is any bits: infinity, NaN, subnormal numbers, the largest integers.
std::vector<Bytes> DrawInputs(DataType type, int world_size, int64_t n);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_ALGORITHMS_REDUCTION_REFERENCE_H_
