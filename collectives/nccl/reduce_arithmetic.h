// The arithmetic of reductions in device code. Included only by .cu files.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_REDUCE_ARITHMETIC_H_
#define LOCKSTEP_COLLECTIVES_NCCL_REDUCE_ARITHMETIC_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_elements.h"
#include "base/data_types.h"
#include "collectives/collective.h"

namespace lockstep {

// The number of elements in a vector of the widest of these types.
template <typename... Ts>
constexpr int kElementsPerVector = kVectorBytes / std::max({sizeof(Ts)...});

// How `size` elements are divided over threads: `head` single elements,
// `vectors` vectors, and single elements up to `size`. Threads stride over the
// vectors, then over the single elements as if head and tail were one range.
struct ElementPlan {
  int64_t head = 0;
  int64_t vectors = 0;
  int64_t blocks = 0;
};

// past: the number of elements between a vector boundary and the beginning of
// the memory, if this number is the same for all operands; otherwise nullopt.
inline ElementPlan PlanElements(int64_t size, int64_t vector_size,
                                std::optional<int64_t> past,
                                int64_t threads_per_block, int64_t max_blocks) {
  ElementPlan plan;
  if (past.has_value()) {
    plan.head = std::min(size, (vector_size - *past) % vector_size);
    plan.vectors = (size - plan.head) / vector_size;
  }
  const int64_t wanted =
      std::max(plan.vectors, size - plan.vectors * vector_size);
  plan.blocks = std::min(max_blocks,
                         (wanted + threads_per_block - 1) / threads_per_block);
  return plan;
}

// A is the type of the accumulator.
template <typename A, typename T>
__device__ inline A Load(T x) {
  if constexpr (kIsHalf<T>) {
    return ToFloat(x);
  } else {
    return static_cast<A>(x);
  }
}

template <typename A, typename T>
__device__ inline void Store(A x, T& to) {
  if constexpr (kIsHalf<T>) {
    to = RoundTo<T>(x);
  } else {
    to = static_cast<T>(x);
  }
}

// Integers wrap, so the arithmetic uses unsigned types.
template <typename A, bool kIsInteger = std::is_integral_v<A>>
struct Arithmetic {
  using Type = A;
};
template <typename A>
struct Arithmetic<A, true> {
  // At least 32 bits, since narrower types would be promoted to int.
  using Type = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;
};

template <ReduceOp op, typename A>
__device__ inline A Combine(A a, A b) {
  using U = typename Arithmetic<A>::Type;
  if constexpr (op == ReduceOp::kSum || op == ReduceOp::kAverage) {
    return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
  } else if constexpr (op == ReduceOp::kProduct) {
    return static_cast<A>(static_cast<U>(a) * static_cast<U>(b));
  } else {
    // Only a NaN differs from itself.
    if (a != a) return a;
    if (b != b) return b;
    if constexpr (op == ReduceOp::kMin) return b < a ? b : a;
    return a < b ? b : a;
  }
}

// Divides for the last step of kAverage, if `divisor` is over 1.
template <ReduceOp op, typename A>
__device__ inline A Divide(A value, int divisor) {
  if constexpr (op == ReduceOp::kAverage) {
    if (divisor > 1) return value / static_cast<A>(divisor);
  }
  return value;
}

// Calls fn.template operator()<op, A, T>() for the operation, the type T and
// its accumulator A. Error: kInvalidArgument for an unknown operation.
template <typename T, typename A, typename M, typename Fn>
absl::Status WithOp(ReduceOp op, const Fn& fn) {
  switch (op) {
    case ReduceOp::kSum:
      return fn.template operator()<ReduceOp::kSum, A, T>();
    case ReduceOp::kProduct:
      return fn.template operator()<ReduceOp::kProduct, A, T>();
    case ReduceOp::kMin:
      return fn.template operator()<ReduceOp::kMin, A, T>();
    case ReduceOp::kMax:
      return fn.template operator()<ReduceOp::kMax, A, T>();
    case ReduceOp::kAverage:
      return fn.template operator()<ReduceOp::kAverage, M, T>();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no operation ", static_cast<int>(op)));
}

template <typename Fn>
absl::Status WithReduction(DataType type, ReduceOp op, const Fn& fn) {
  switch (type) {
    case DataType::kFloat64:
      return WithOp<double, double, double>(op, fn);
    case DataType::kFloat32:
      return WithOp<float, float, float>(op, fn);
    case DataType::kFloat16:
      return WithOp<__half, float, float>(op, fn);
    case DataType::kBFloat16:
      return WithOp<__nv_bfloat16, float, float>(op, fn);
    case DataType::kInt32:
      return WithOp<int32_t, int32_t, int64_t>(op, fn);
    case DataType::kInt64:
      return WithOp<int64_t, int64_t, int64_t>(op, fn);
    case DataType::kUInt8:
      return WithOp<uint8_t, uint8_t, int64_t>(op, fn);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no type ", static_cast<int>(type)));
}

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_REDUCE_ARITHMETIC_H_
