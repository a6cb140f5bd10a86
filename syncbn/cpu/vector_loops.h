// Compiles the CPU's batch norm loops once for each instruction set, and
// converts between activations and the type of the arithmetic.
#ifndef LOCKSTEP_SYNCBN_CPU_VECTOR_LOOPS_H_
#define LOCKSTEP_SYNCBN_CPU_VECTOR_LOOPS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/data_types.h"
#include "base/vector_unit.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LOCKSTEP_SYNCBN_AVX2 __attribute__((target("avx2,f16c")))
#define LOCKSTEP_SYNCBN_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prfchw")))
#endif

// Inlines a function into functions for different instruction sets, so that it
// is compiled for each of them.
#define LOCKSTEP_SYNCBN_INLINE __attribute__((always_inline)) inline

// Prevents inlining, so that code of several callers is compiled once.
#define LOCKSTEP_SYNCBN_CALL __attribute__((noinline))

// Declares that the loop's result may be one of its operands. Without this, the
// compiler would not vectorise the loop.
#if defined(__clang__)
#define LOCKSTEP_SYNCBN_SAME_OR_APART \
  _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_SYNCBN_SAME_OR_APART _Pragma("GCC ivdep")
#endif

// Unrolls a loop over a few vectors, so that they stay in registers.
#if defined(__clang__)
#define LOCKSTEP_SYNCBN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LOCKSTEP_SYNCBN_UNROLL _Pragma("GCC unroll 16")
#endif

namespace lockstep {

// The type in which activations of type E are computed.
template <typename E>
using ComputeType =
    std::conditional_t<std::is_same_v<E, double>, double, float>;

template <typename E>
LOCKSTEP_SYNCBN_INLINE void WidenEach(const E* from, ComputeType<E>* to,
                                      int64_t n) {
  LOCKSTEP_SYNCBN_SAME_OR_APART
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<E, ComputeType<E>>) {
      to[i] = from[i];
    } else {
      to[i] = ToFloat(from[i]);
    }
  }
}

template <typename E>
LOCKSTEP_SYNCBN_INLINE void NarrowEach(const ComputeType<E>* from, E* to,
                                       int64_t n) {
  LOCKSTEP_SYNCBN_SAME_OR_APART
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<E, Float16>) {
      to[i] = ToFloat16(from[i]);
    } else if constexpr (std::is_same_v<E, BFloat16>) {
      to[i] = ToBFloat16(from[i]);
    } else {
      to[i] = from[i];
    }
  }
}

// Prefetches `n` values that lie `ahead` bytes after `from`. The address need
// not be valid.
template <int64_t n, typename T>
LOCKSTEP_SYNCBN_INLINE void Prefetch(const T* from, int64_t ahead) {
  constexpr int64_t kLine = 64;
  const uintptr_t address =
      reinterpret_cast<uintptr_t>(from) + static_cast<uintptr_t>(ahead);
  for (int64_t i = 0; i < n * int64_t{sizeof(T)}; i += kLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(address + i), 0, 3);
  }
}

// Prefetches values that will be overwritten, if the unit has an instruction
// for that.
template <int64_t n, typename T>
LOCKSTEP_SYNCBN_INLINE void PrefetchToWrite(const T* from, int64_t ahead) {
  constexpr int64_t kLine = 64;
  const uintptr_t address =
      reinterpret_cast<uintptr_t>(from) + static_cast<uintptr_t>(ahead);
  for (int64_t i = 0; i < n * int64_t{sizeof(T)}; i += kLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(address + i), 1, 3);
  }
}

// A vector with as many values as a register of the unit. Loops use vectors
// explicitly, because a compiler may leave a loop over a few values without
// vectors.
template <typename T, int64_t bytes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(bytes)));
};
template <typename Unit, typename T>
using Vector = typename VectorOf<T, Unit::kVectorBytes>::Type;
template <typename Unit, typename T>
inline constexpr int64_t kVectorSize = Unit::kVectorBytes /
                                       static_cast<int64_t>(sizeof(T));

// A vector in memory, at any address.
template <typename V>
struct __attribute__((packed, may_alias)) VectorInMemory {
  V values;
};
template <typename V, typename T>
LOCKSTEP_SYNCBN_INLINE const VectorInMemory<V>& VectorAt(const T* values) {
  return *reinterpret_cast<const VectorInMemory<V>*>(values);
}
template <typename V, typename T>
LOCKSTEP_SYNCBN_INLINE VectorInMemory<V>& VectorAt(T* values) {
  return *reinterpret_cast<VectorInMemory<V>*>(values);
}

// Whether units can store past the caches.
#if defined(__SSE2__)
inline constexpr bool kCanStream = true;
#else
inline constexpr bool kCanStream = false;
#endif

// Makes streamed stores visible before later stores.
LOCKSTEP_SYNCBN_INLINE void FinishStreaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// A unit runs a loop, converts activations, and stores floats past the caches
// at addresses that are multiples of kVectorBytes. A loop is a struct with a
// static function Run<Unit> whose code is all inlined. All units give the same
// bits: each lane is a column, whatever the width of a vector, and nothing is
// fused if the library is compiled with -ffp-contract=off.
struct BaselineUnit {
  static constexpr int64_t kVectorBytes = 16;

  template <typename Loop, typename... Args>
  LOCKSTEP_SYNCBN_CALL static void Run(Args... args) {
    Loop::template Run<BaselineUnit>(args...);
  }
  template <typename E>
  static LOCKSTEP_SYNCBN_INLINE void Widen(const E* from, ComputeType<E>* to,
                                           int64_t n) {
    WidenEach(from, to, n);
  }
  template <typename E>
  static LOCKSTEP_SYNCBN_INLINE void Narrow(const ComputeType<E>* from, E* to,
                                            int64_t n) {
    NarrowEach(from, to, n);
  }
  static LOCKSTEP_SYNCBN_INLINE void Stream(
      const Vector<BaselineUnit, float>& from, float* to) {
#if defined(__SSE2__)
    _mm_stream_ps(to, from);
#else
    VectorAt<Vector<BaselineUnit, float>>(to).values = from;
#endif
  }
};

#if defined(__x86_64__)

// F16C converts in one instruction, to the same bits as base/data_types.h.
struct Avx2Unit {
  static constexpr int64_t kVectorBytes = 32;

  template <typename Loop, typename... Args>
  LOCKSTEP_SYNCBN_CALL LOCKSTEP_SYNCBN_AVX2 static void Run(Args... args) {
    Loop::template Run<Avx2Unit>(args...);
  }
  template <typename E>
  static LOCKSTEP_SYNCBN_INLINE void Widen(const E* from, ComputeType<E>* to,
                                           int64_t n) {
    if constexpr (std::is_same_v<E, Float16>) {
      WidenHalf(from, to, n);
    } else {
      WidenEach(from, to, n);
    }
  }
  template <typename E>
  static LOCKSTEP_SYNCBN_INLINE void Narrow(const ComputeType<E>* from, E* to,
                                            int64_t n) {
    if constexpr (std::is_same_v<E, Float16>) {
      NarrowHalf(from, to, n);
    } else {
      NarrowEach(from, to, n);
    }
  }
  LOCKSTEP_SYNCBN_AVX2 static void Stream(const Vector<Avx2Unit, float>& from,
                                          float* to) {
    _mm256_stream_ps(to, from);
  }

 private:
  LOCKSTEP_SYNCBN_AVX2 static void WidenHalf(const Float16* from, float* to,
                                             int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      __m128i halves;
      std::memcpy(&halves, from + i, sizeof(halves));
      const __m256 floats = _mm256_cvtph_ps(halves);
      std::memcpy(to + i, &floats, sizeof(floats));
    }
    for (; i < n; ++i) to[i] = ToFloat(from[i]);
  }
  LOCKSTEP_SYNCBN_AVX2 static void NarrowHalf(const float* from, Float16* to,
                                              int64_t n) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      __m256 floats;
      std::memcpy(&floats, from + i, sizeof(floats));
      const __m128i halves = _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT);
      std::memcpy(to + i, &halves, sizeof(halves));
    }
    for (; i < n; ++i) to[i] = ToFloat16(from[i]);
  }
};

// Converts as Avx2Unit does.
struct Avx512Unit : Avx2Unit {
  static constexpr int64_t kVectorBytes = 64;

  template <typename Loop, typename... Args>
  LOCKSTEP_SYNCBN_CALL LOCKSTEP_SYNCBN_AVX512 static void Run(Args... args) {
    Loop::template Run<Avx512Unit>(args...);
  }
  LOCKSTEP_SYNCBN_AVX512 static void Stream(
      const Vector<Avx512Unit, float>& from, float* to) {
    _mm512_stream_ps(to, from);
  }
};

#else

using Avx2Unit = BaselineUnit;
using Avx512Unit = BaselineUnit;

#endif

// Runs Loop::Run<Unit>(args...) for the unit of `unit`.
template <typename Loop, typename... Args>
void RunOn(VectorUnit unit, Args... args) {
  switch (unit) {
    case VectorUnit::kAvx512:
      return Avx512Unit::Run<Loop>(args...);
    case VectorUnit::kAvx2:
      return Avx2Unit::Run<Loop>(args...);
    case VectorUnit::kBaseline:
      return BaselineUnit::Run<Loop>(args...);
  }
}

// Loops that convert activations. A unit has one copy of each for all callers
// that run them, and another wherever Widen or Narrow is called.
template <typename E>
struct WidenLoop {
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Run(const E* from, ComputeType<E>* to,
                                         int64_t n) {
    Unit::template Widen<E>(from, to, n);
  }
};
template <typename E>
struct NarrowLoop {
  template <typename Unit>
  static LOCKSTEP_SYNCBN_INLINE void Run(const ComputeType<E>* from, E* to,
                                         int64_t n) {
    Unit::template Narrow<E>(from, to, n);
  }
};

// Calls fn(E()), where E is the C++ type of an activation type.
template <typename Fn>
void ForActivationType(DataType type, const Fn& fn) {
  switch (type) {
    case DataType::kFloat64:
      return fn(double());
    case DataType::kFloat16:
      return fn(Float16());
    case DataType::kBFloat16:
      return fn(BFloat16());
    default:
      return fn(float());
  }
}

// Calls fn with a std::bool_constant for each flag.
template <typename Fn>
void ForFlags(const Fn& fn) {
  fn();
}
template <typename Fn, typename... Flags>
void ForFlags(const Fn& fn, bool flag, Flags... flags) {
  if (flag) {
    ForFlags([&](auto... rest) { fn(std::true_type(), rest...); }, flags...);
  } else {
    ForFlags([&](auto... rest) { fn(std::false_type(), rest...); }, flags...);
  }
}

// Sets value to max(0, value), except that NaN stays NaN. T: a number or a
// vector.
template <typename T>
LOCKSTEP_SYNCBN_INLINE void ApplyRelu(T& value) {
  value = value <= 0 ? T{} : value;
}

// Turns the gradient of ReLU's output y into that of its input.
template <typename T>
LOCKSTEP_SYNCBN_INLINE void ApplyReluGradient(const T& y, T& gradient) {
  gradient = y <= 0 ? T{} : gradient;
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_VECTOR_LOOPS_H_
