// Element-wise sums: what a reduction does on one rank.
#ifndef LOCKSTEP_COLLECTIVES_HOST_ADD_INTO_H_
#define LOCKSTEP_COLLECTIVES_HOST_ADD_INTO_H_

#include <cstddef>
#include <span>

#include "collectives/buffer.h"

namespace lockstep {

// sum[i] += term[i], for elements of `type`; the two are of one size, a
// multiple of SizeOf(type), of any alignment, and do not overlap. Each addition
// is rounded once, in the type itself; int64 wraps around.
void AddInto(DataType type, std::span<std::byte> sum,
             std::span<const std::byte> term);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_ADD_INTO_H_
