// The 16-bit floats, computed from the definition of their formats. Tests
// compare the arithmetic of data_types.h, and of its users, against this code.
// The two share no code.
#ifndef LOCKSTEP_BASE_HALF_REFERENCE_H_
#define LOCKSTEP_BASE_HALF_REFERENCE_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lockstep {

// A format of 16-bit floats.
struct HalfFormat {
  int precision;  // In bits, with the leading one.
  int max_exponent;
  int min_exponent;  // The least of normal numbers.
};
inline constexpr HalfFormat kFloat16Format = {11, 15, -14};
inline constexpr HalfFormat kBFloat16Format = {8, 127, -126};

// Returns 2^exponent, for the exponents of normal doubles. Multiplying by it is
// as exact as std::ldexp(), and faster.
inline double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// Returns the nearest bits, ties to even, which is the default rounding of
// std::nearbyint. A number that is too large becomes infinity. A NaN becomes
// quiet; it keeps its sign and as much of its payload as fits.
inline uint16_t EncodeHalf(const HalfFormat& format, double x) {
  const int mantissa_bits = format.precision - 1;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const int infinity = (format.max_exponent * 2 + 1) << mantissa_bits;
  if (std::isnan(x)) {
    const int payload =
        static_cast<int>((std::bit_cast<uint64_t>(x) & 0xf'ffff'ffff'ffff) >>
                         (52 - mantissa_bits));
    const int quiet = 1 << (mantissa_bits - 1);
    return static_cast<uint16_t>(sign | infinity | quiet | payload);
  }
  x = std::fabs(x);
  if (std::isinf(x)) return static_cast<uint16_t>(sign | infinity);
  if (x == 0) return sign;
  const int exponent = std::max(std::ilogb(x), format.min_exponent);
  // The significand in units of the last place. A carry moves into the exponent
  // without further code.
  const int units = static_cast<int>(
      std::nearbyint(x * PowerOfTwo(mantissa_bits - exponent)));
  const int bits = ((exponent - format.min_exponent) << mantissa_bits) + units;
  return static_cast<uint16_t>(sign | (bits < infinity ? bits : infinity));
}

// Returns the exact value. A NaN becomes quiet and keeps its sign and payload.
inline double DecodeHalf(const HalfFormat& format, uint16_t bits) {
  const int mantissa_bits = format.precision - 1;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  if (exponent == format.max_exponent * 2 + 1) {
    const uint64_t quiet = mantissa == 0 ? 0 : uint64_t{1} << 51;
    return std::bit_cast<double>(
        std::bit_cast<uint64_t>(sign *
                                std::numeric_limits<double>::infinity()) |
        quiet | static_cast<uint64_t>(mantissa) << (52 - mantissa_bits));
  }
  if (exponent == 0) {
    return sign * mantissa * PowerOfTwo(format.min_exponent - mantissa_bits);
  }
  return sign * (mantissa + (1 << mantissa_bits)) *
         PowerOfTwo(exponent - 1 + format.min_exponent - mantissa_bits);
}

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_HALF_REFERENCE_H_
