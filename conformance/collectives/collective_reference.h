// How the reference of collectives computes: in each type of element, and in
// each order of the ranks.
#ifndef LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_REFERENCE_H_
#define LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_REFERENCE_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/data_types.h"
#include "collectives/collective.h"
#include "conformance/collectives/collective_case.h"

namespace lockstep {

// 2^exponent, for the exponents of normal doubles. To multiply by it is
// std::ldexp(), as exact and faster.
inline double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// Formats of floats with 16 bits.
struct Format {
  int precision;  // Bits, with the leading one.
  int max_exponent;
  int min_exponent;  // Of normal numbers.
};
inline constexpr Format kHalf = {11, 15, -14};
inline constexpr Format kBrain = {8, 127, -126};

// To nearest, ties to even; NaN, infinities and signs are kept.
uint16_t Encode(const Format& format, double x);
double Decode(const Format& format, uint16_t bits);

// How an element type computes: what its partial results are held in.
template <typename T>
struct Arithmetic {
  using Accumulator = T;
  static T Widen(T x) { return x; }
  static T Narrow(T x) { return x; }
};
template <>
struct Arithmetic<Float16> {
  using Accumulator = float;
  static float Widen(Float16 x) {
    return static_cast<float>(Decode(kHalf, x.bits));
  }
  static Float16 Narrow(float x) { return {Encode(kHalf, x)}; }
};
template <>
struct Arithmetic<BFloat16> {
  using Accumulator = float;
  static float Widen(BFloat16 x) {
    return static_cast<float>(Decode(kBrain, x.bits));
  }
  static BFloat16 Narrow(float x) { return {Encode(kBrain, x)}; }
};

template <typename T>
inline constexpr bool kIsInteger = std::is_integral_v<T>;

// Signed overflow is undefined in C++; modulo 2^64 it is what it should be.
template <typename A>
A Combine(ReduceOp op, A a, A b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      if constexpr (kIsInteger<A>) {
        return static_cast<A>(static_cast<uint64_t>(a) +
                              static_cast<uint64_t>(b));
      } else {
        return a + b;
      }
    case ReduceOp::kProduct:
      if constexpr (kIsInteger<A>) {
        return static_cast<A>(static_cast<uint64_t>(a) *
                              static_cast<uint64_t>(b));
      } else {
        return a * b;
      }
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      if constexpr (!kIsInteger<A>) {
        if (std::isnan(a) || std::isnan(b)) return a + b;
      }
      return (op == ReduceOp::kMin ? b < a : a < b) ? b : a;
  }
  return a;
}

// x is an element of each rank. The ranks from `first` on, one after the other.
template <typename A>
A InRingOrder(ReduceOp op, std::span<const A> x, int first) {
  A result = x[static_cast<size_t>(first)];
  for (size_t i = 1; i < x.size(); ++i) {
    result =
        Combine(op, result, x[(static_cast<size_t>(first) + i) % x.size()]);
  }
  return result;
}

// Pairs until a power of two is left, then neighbours until one is. x is where
// it computes.
template <typename A>
A InTreeOrder(ReduceOp op, std::span<A> x) {
  size_t power = 1;
  while (power * 2 <= x.size()) power *= 2;
  const size_t pairs = x.size() - power;
  for (size_t i = 0; i < pairs; ++i) {
    x[i] = Combine(op, x[2 * i], x[2 * i + 1]);
  }
  for (size_t i = pairs; i < power; ++i) x[i] = x[i + pairs];
  for (; power > 1; power /= 2) {
    for (size_t i = 0; i < power; i += 2) {
      x[i / 2] = Combine(op, x[i], x[i + 1]);
    }
  }
  return x[0];
}

// What a collective call must give, computed by one rank that knows all inputs.

using Bytes = std::vector<std::byte>;

// The input of one rank; the source's for kSend.
Bytes InputOf(const CollectiveCase& call, int world_size, int rank);

// Elements that each rank gives to an AllGather.
std::vector<int64_t> CountsOf(const CollectiveCase& call, int world_size);

// In which order a group adds.
enum class SumOrder {
  kBySize,  // As algorithms/order.h states.
  kRing,    // As it states for large sizes, whatever the size.
};

// Which inputs a reduction takes.
struct Taken {
  std::vector<int>
      ranks;       // In place of each rank's, this one's; empty: its own.
  int twice = -1;  // This rank's is reduced with itself first; -1: none.
};

// The output of one rank. None where a rank gets no output: whatever it has
// there must stay as it is. `taken` is for what a group might get wrong.
std::optional<Bytes> OutputOf(const CollectiveCase& call, SumOrder order,
                              int world_size, int rank,
                              const Taken& taken = {});

// The first element that differs, as text; none if there is none. Two NaN are
// equal, other values only if all their bits are.
std::optional<std::string> Difference(const CollectiveCase& call,
                                      const std::byte* got, const Bytes& want);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_COLLECTIVES_COLLECTIVE_REFERENCE_H_
