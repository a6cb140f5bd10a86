// The loops are templates that are compiled once for each instruction set. The
// compiler vectorises all of them except float16. No loop multiplies and then
// adds, so the compiler cannot fuse operations.
#include "collectives/algorithms/reduction_kernels.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/data_types.h"
#include "base/vector_unit.h"
#include "collectives/collective.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LOCKSTEP_AVX2 __attribute__((target("avx2,f16c")))
#define LOCKSTEP_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c")))
#endif

// Inlines a function into functions for different instruction sets, so that it
// is compiled for each.
#define LOCKSTEP_INLINE __attribute__((always_inline)) inline

// Allows vectorisation of a loop whose result may be one of its operands. The
// compiler otherwise has to assume other overlaps too.
#if defined(__clang__)
#define LOCKSTEP_SAME_OR_APART _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_SAME_OR_APART _Pragma("GCC ivdep")
#endif

namespace lockstep {
namespace {

template <typename T>
constexpr int64_t kSize = sizeof(T);

// Loads an element. memcpy is how C++ accesses memory of any alignment.
template <typename T>
LOCKSTEP_INLINE T Load(const void* from, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(from) + index * kSize<T>,
              sizeof(T));
  return value;
}

template <typename T>
LOCKSTEP_INLINE void Store(T value, void* to, int64_t index) {
  std::memcpy(static_cast<std::byte*>(to) + index * kSize<T>, &value,
              sizeof(T));
}

template <typename A, typename E>
LOCKSTEP_INLINE A Widen(E element) {
  if constexpr (std::is_same_v<A, E> || std::is_integral_v<E>) {
    return element;
  } else {
    return ToFloat(element);
  }
}

template <typename E, typename A>
LOCKSTEP_INLINE E Narrow(A value) {
  if constexpr (std::is_same_v<E, Float16>) {
    return ToFloat16(value);
  } else if constexpr (std::is_same_v<E, BFloat16>) {
    return ToBFloat16(value);
  } else {
    return static_cast<E>(value);
  }
}

template <ReduceOp op, typename A>
LOCKSTEP_INLINE A CombineIntegers(A a, A b) {
  if constexpr (op == ReduceOp::kMin) return b < a ? b : a;
  if constexpr (op == ReduceOp::kMax) return a < b ? b : a;
  // Unsigned arithmetic wraps. (uint8_t is promoted to int, which is large
  // enough.)
  using Unsigned = std::make_unsigned_t<A>;
  const auto x = static_cast<Unsigned>(a);
  const auto y = static_cast<Unsigned>(b);
  if constexpr (op == ReduceOp::kProduct) return static_cast<A>(x * y);
  return static_cast<A>(x + y);
}

template <ReduceOp op, typename A>
LOCKSTEP_INLINE A CombineFloats(A a, A b) {
  A result;
  if constexpr (op == ReduceOp::kProduct) {
    result = a * b;
  } else if constexpr (op == ReduceOp::kMin) {
    result = b < a ? b : a;
    result = b != b ? b : result;
  } else if constexpr (op == ReduceOp::kMax) {
    result = a < b ? b : a;
    result = b != b ? b : result;
  } else {
    result = a + b;
  }
  return result != result ? std::numeric_limits<A>::quiet_NaN() : result;
}

template <typename E, typename A>
struct BeginLoop {
  static LOCKSTEP_INLINE void Run(const void* input, void* accumulator,
                                  int64_t n) {
    LOCKSTEP_SAME_OR_APART
    for (int64_t i = 0; i < n; ++i) {
      Store<A>(Widen<A>(Load<E>(input, i)), accumulator, i);
    }
  }
};

template <ReduceOp op, typename A>
LOCKSTEP_INLINE A Combined(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    return CombineIntegers<op>(a, b);
  } else {
    return CombineFloats<op>(a, b);
  }
}

// Combines elements with accumulators. op is never kAverage, which combines as
// kSum does.
template <ReduceOp op, typename E, typename A>
struct CombineLoop {
  static LOCKSTEP_INLINE void Run(const void* earlier, const void* later,
                                  void* result, int64_t n) {
    LOCKSTEP_SAME_OR_APART
    for (int64_t i = 0; i < n; ++i) {
      const A a = Load<A>(earlier, i);
      const A b = Widen<A>(Load<E>(later, i));
      Store<A>(Combined<op>(a, b), result, i);
    }
  }
};

template <ReduceOp op, typename A>
struct CombineThreeLoop {
  static LOCKSTEP_INLINE void Run(const void* earlier, const void* const* later,
                                  void* result, int64_t n) {
    const void* const b = later[0];
    const void* const c = later[1];
    const void* const d = later[2];
    LOCKSTEP_SAME_OR_APART
    for (int64_t i = 0; i < n; ++i) {
      A value = Combined<op>(Load<A>(earlier, i), Load<A>(b, i));
      value = Combined<op>(value, Load<A>(c, i));
      Store<A>(Combined<op>(value, Load<A>(d, i)), result, i);
    }
  }
};

// Returns sum / divisor, rounded toward zero, for sums of int32 or uint8, which
// stay below 2^51 for up to 2^20 ranks. Divides in double, because that
// vectorises. A quotient that is not whole differs from the nearest whole
// number by at least 1 / divisor, more than rounding changes it.
LOCKSTEP_INLINE int32_t DivideSum(int64_t sum, double divisor) {
  // The last place of kBase is 1, so adding to its lowest bits adds integers.
  constexpr double kBase = 0x1.8p52;
  const auto bits = std::bit_cast<uint64_t>(kBase) + static_cast<uint64_t>(sum);
  return static_cast<int32_t>((std::bit_cast<double>(bits) - kBase) / divisor);
}

template <bool divide, typename E, typename A>
struct FinishLoop {
  static LOCKSTEP_INLINE void Run(const void* accumulator, void* output,
                                  int64_t n, int world_size) {
    LOCKSTEP_SAME_OR_APART
    for (int64_t i = 0; i < n; ++i) {
      const A value = Load<A>(accumulator, i);
      if constexpr (!divide) {
        Store<E>(Narrow<E>(value), output, i);
      } else if constexpr (std::is_integral_v<E> && !std::is_same_v<E, A>) {
        Store<E>(static_cast<E>(DivideSum(value, world_size)), output, i);
      } else {
        Store<E>(Narrow<E>(value / static_cast<A>(world_size)), output, i);
      }
    }
  }
};

struct Baseline {
  static constexpr bool kConvertsFloat16 = false;

  template <typename Loop, typename... Args>
  static void Run(Args... args) {
    Loop::Run(args...);
  }
};

#if defined(__x86_64__)

// Uses F16C, whose conversions give the bits of data_types.h in one
// instruction.
struct Avx2 {
  static constexpr bool kConvertsFloat16 = true;

  template <typename Loop, typename... Args>
  LOCKSTEP_AVX2 static void Run(Args... args) {
    Loop::Run(args...);
  }

  LOCKSTEP_AVX2 static void Begin(const void* input, void* accumulator,
                                  int64_t n) {
    const auto* from = static_cast<const std::byte*>(input);
    auto* to = static_cast<std::byte*>(accumulator);
    for (; n >= 8; n -= 8, from += 16, to += 32) {
      __m128i halves;
      std::memcpy(&halves, from, sizeof(halves));
      const __m256 floats = _mm256_cvtph_ps(halves);
      std::memcpy(to, &floats, sizeof(floats));
    }
    BeginLoop<Float16, float>::Run(from, to, n);
  }

  template <ReduceOp op>
  LOCKSTEP_AVX2 static void Accumulate(const void* earlier, const void* later,
                                       void* result, int64_t n) {
    constexpr int64_t kChunk = 256;
    alignas(32) float floats[kChunk];
    const auto* from = static_cast<const std::byte*>(earlier);
    const auto* halves = static_cast<const std::byte*>(later);
    auto* to = static_cast<std::byte*>(result);
    for (int64_t i = 0; i < n; i += kChunk) {
      const int64_t size = std::min(kChunk, n - i);
      Begin(halves + 2 * i, floats, size);
      CombineLoop<op, float, float>::Run(from + 4 * i, floats, to + 4 * i,
                                         size);
    }
  }

  template <bool divide>
  LOCKSTEP_AVX2 static void Finish(const void* accumulator, void* output,
                                   int64_t n, int world_size) {
    const auto* from = static_cast<const std::byte*>(accumulator);
    auto* to = static_cast<std::byte*>(output);
    const __m256 divisor = _mm256_set1_ps(static_cast<float>(world_size));
    for (; n >= 8; n -= 8, from += 32, to += 16) {
      __m256 floats;
      std::memcpy(&floats, from, sizeof(floats));
      if constexpr (divide) floats = _mm256_div_ps(floats, divisor);
      const __m128i halves = _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT);
      std::memcpy(to, &halves, sizeof(halves));
    }
    FinishLoop<divide, Float16, float>::Run(from, to, n, world_size);
  }
};

// Uses half as many instructions per float as Avx2: detecting a NaN and
// replacing it take one each.
struct Avx512 : Avx2 {
  template <typename Loop, typename... Args>
  LOCKSTEP_AVX512 static void Run(Args... args) {
    Loop::Run(args...);
  }
};

#else

using Avx2 = Baseline;
using Avx512 = Baseline;

#endif

template <typename E>
constexpr bool kIsHalf =
    std::is_same_v<E, Float16> || std::is_same_v<E, BFloat16>;

// The C++ type of AccumulatorOf.
template <typename E, ReduceOp op>
using AccumulatorType = std::conditional_t<
    kIsHalf<E>, float,
    std::conditional_t<op == ReduceOp::kAverage && std::is_integral_v<E>,
                       int64_t, E>>;

template <typename Unit, typename E, ReduceOp op>
constexpr ReductionKernels MakeKernels() {
  using A = AccumulatorType<E, op>;
  static_assert(kDataTypeOf<A> == AccumulatorOf(kDataTypeOf<E>, op));
  constexpr bool kDivides = op == ReduceOp::kAverage;
  constexpr ReduceOp kCombines = kDivides ? ReduceOp::kSum : op;
  ReductionKernels kernels = {};
  if constexpr (std::is_same_v<E, A>) {
    kernels.accumulate_three =
        Unit::template Run<CombineThreeLoop<kCombines, A>>;
  } else {
    kernels.begin = Unit::template Run<BeginLoop<E, A>>;
  }
  kernels.accumulate = Unit::template Run<CombineLoop<kCombines, E, A>>;
  kernels.merge = Unit::template Run<CombineLoop<kCombines, A, A>>;
  if constexpr (!std::is_same_v<E, A> || kDivides) {
    kernels.finish = Unit::template Run<FinishLoop<kDivides, E, A>>;
  }
  if constexpr (std::is_same_v<E, Float16> && Unit::kConvertsFloat16) {
    kernels.begin = Unit::Begin;
    kernels.accumulate = Unit::template Accumulate<kCombines>;
    kernels.finish = Unit::template Finish<kDivides>;
  }
  return kernels;
}

template <typename Unit, typename E>
const ReductionKernels& KernelsOf(ReduceOp op) {
  static constexpr ReductionKernels kByOp[] = {
      MakeKernels<Unit, E, ReduceOp::kSum>(),
      MakeKernels<Unit, E, ReduceOp::kProduct>(),
      MakeKernels<Unit, E, ReduceOp::kMin>(),
      MakeKernels<Unit, E, ReduceOp::kMax>(),
      MakeKernels<Unit, E, ReduceOp::kAverage>()};
  return kByOp[static_cast<size_t>(op)];
}

template <typename Unit>
const ReductionKernels& KernelsOf(DataType type, ReduceOp op) {
  return WithDataType(type, [op]<typename E>(E) -> const ReductionKernels& {
    return KernelsOf<Unit, E>(op);
  });
}

}  // namespace

const ReductionKernels& ReductionKernelsFor(DataType type, ReduceOp op,
                                            VectorUnit unit) {
  switch (unit) {
    case VectorUnit::kAvx512:
      return KernelsOf<Avx512>(type, op);
    case VectorUnit::kAvx2:
      return KernelsOf<Avx2>(type, op);
    default:
      return KernelsOf<Baseline>(type, op);
  }
}

}  // namespace lockstep
