// The stand-in's half precision: IEEE 754 binary16, with the conversions of
// base/data_types.h.
#ifndef LOCKSTEP_STANDIN_INCLUDE_CUDA_FP16_H_
#define LOCKSTEP_STANDIN_INCLUDE_CUDA_FP16_H_

#include <bit>
#include <cmath>

#include "base/data_types.h"
#include "standin/include/device_code.h"

// Has the size, alignment and bits of CUDA's type, and no implicit conversions.
class __half {
  friend float __half2float(__half value);
  friend __half __float2half_rn(float value);

  lockstep::Float16 value_;
};

// Converts exactly. NaN has no payload, as on a GPU.
inline float __half2float(__half value) {
  const float wide = lockstep::ToFloat(value.value_);
  return wide == wide ? wide : std::bit_cast<float>(0x7fffffffu);
}

// Rounds to nearest, ties to even. NaN has no payload, as on a GPU.
inline __half __float2half_rn(float value) {
  __half narrow;
  narrow.value_ =
      value == value ? lockstep::ToFloat16(value) : lockstep::Float16{0x7fff};
  return narrow;
}

// A pair of halves. Arithmetic rounds each result once, to nearest. On a GPU a
// product and a sum may be contracted, except by the calls that end in _rn.
struct alignas(4) __half2 {
  __half x, y;
};

inline __half2 __half2half2(__half value) { return {value, value}; }
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline __half2 __float22half2_rn(float2 value) {
  return __floats2half2_rn(value.x, value.y);
}
inline float2 __half22float2(__half2 value) {
  return {__half2float(value.x), __half2float(value.y)};
}
inline float __low2float(__half2 value) { return __half2float(value.x); }
inline float __high2float(__half2 value) { return __half2float(value.y); }

inline __half __hfma(__half a, __half b, __half c) {
  return __float2half_rn(lockstep::standin::FmaToOdd(
      __half2float(a), __half2float(b), __half2float(c)));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
inline __half2 __hadd2(__half2 a, __half2 b) {
  return __hfma2(a, __half2half2(__float2half_rn(1)), b);
}
inline __half2 __hsub2(__half2 a, __half2 b) {
  return __hfma2(b, __half2half2(__float2half_rn(-1)), a);
}
inline __half2 __hmul2(__half2 a, __half2 b) {
  return __hfma2(a, b, __half2half2(__float2half_rn(-0.0f)));
}
inline __half2 __hadd2_rn(__half2 a, __half2 b) { return __hadd2(a, b); }
inline __half2 __hsub2_rn(__half2 a, __half2 b) { return __hsub2(a, b); }
inline __half2 __hmul2_rn(__half2 a, __half2 b) { return __hmul2(a, b); }

// Returns the larger number. A number wins against NaN, and 0 against -0.
inline __half __hmax(__half a, __half b) {
  const float x = __half2float(a);
  const float y = __half2float(b);
  if (x == y) return std::signbit(x) ? b : a;
  if (x != x || y != y) return x != x ? (y != y ? __float2half_rn(x) : b) : a;
  return x > y ? a : b;
}
inline __half2 __hmax2(__half2 a, __half2 b) {
  return {__hmax(a.x, b.x), __hmax(a.y, b.y)};
}

#endif  // LOCKSTEP_STANDIN_INCLUDE_CUDA_FP16_H_
