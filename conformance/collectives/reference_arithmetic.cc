// 16-bit floats by their definition.
#include "conformance/collectives/reference_arithmetic.h"

#include <cmath>
#include <cstdint>
#include <limits>

namespace lockstep {

// std::nearbyint rounds to nearest, ties to even, by default.
uint16_t Encode(const Format& format, double x) {
  const int mantissa_bits = format.precision - 1;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const int infinity = (format.max_exponent * 2 + 1) << mantissa_bits;
  if (std::isnan(x)) return static_cast<uint16_t>(sign | infinity | 1);
  x = std::fabs(x);
  if (std::isinf(x)) return static_cast<uint16_t>(sign | infinity);
  if (x == 0) return sign;
  int exponent = std::ilogb(x);
  if (exponent < format.min_exponent) exponent = format.min_exponent;
  // Units in the last place: carries into the exponent by itself.
  const int units = static_cast<int>(
      std::nearbyint(x * PowerOfTwo(mantissa_bits - exponent)));
  const int bits = ((exponent - format.min_exponent) << mantissa_bits) + units;
  return static_cast<uint16_t>(sign | (bits < infinity ? bits : infinity));
}

double Decode(const Format& format, uint16_t bits) {
  const int mantissa_bits = format.precision - 1;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  if (exponent == format.max_exponent * 2 + 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) {
    return sign * mantissa * PowerOfTwo(format.min_exponent - mantissa_bits);
  }
  return sign * (mantissa + (1 << mantissa_bits)) *
         PowerOfTwo(exponent - 1 + format.min_exponent - mantissa_bits);
}

}  // namespace lockstep
