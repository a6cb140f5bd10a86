// How the elements of several ranks become one.
#ifndef LOCKSTEP_COLLECTIVES_REDUCE_OP_H_
#define LOCKSTEP_COLLECTIVES_REDUCE_OP_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace lockstep {

// Float16 and bfloat16 are widened to float32, exactly, reduced there, and
// rounded once at the end, to nearest even; float32 and float64 are reduced in
// their own type.
//
// A NaN in any operand gives NaN (its payload is not specified), also for kMin
// and kMax. Zeros of both signs are equal to kMin and kMax, which then keep the
// earlier operand's.
//
// kSum and kProduct of integers wrap. kAverage is the sum divided by the number
// of ranks: for integers the exact sum (of int64, modulo 2^64), and the
// quotient is truncated toward zero.
enum class ReduceOp : int8_t { kSum, kProduct, kMin, kMax, kAverage };

inline constexpr ReduceOp kAllReduceOps[] = {ReduceOp::kSum, ReduceOp::kProduct,
                                             ReduceOp::kMin, ReduceOp::kMax,
                                             ReduceOp::kAverage};

// "sum", "prod", "min", "max", "avg", as nccl-tests names them.
const char* Name(ReduceOp op);
std::optional<ReduceOp> ParseReduceOp(absl::string_view name);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_REDUCE_OP_H_
