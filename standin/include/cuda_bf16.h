// The stand-in's bfloat16: the upper half of an IEEE 754 binary32, with the
// conversions of base/data_types.h.
#ifndef LOCKSTEP_STANDIN_INCLUDE_CUDA_BF16_H_
#define LOCKSTEP_STANDIN_INCLUDE_CUDA_BF16_H_

#include <cmath>

#include "base/data_types.h"
#include "standin/include/device_code.h"

// Has the size, alignment and bits of CUDA's type, and no implicit conversions.
class __nv_bfloat16 {
  friend float __bfloat162float(__nv_bfloat16 value);
  friend __nv_bfloat16 __float2bfloat16_rn(float value);

  lockstep::BFloat16 value_;
};

// Converts exactly.
inline float __bfloat162float(__nv_bfloat16 value) {
  return lockstep::ToFloat(value.value_);
}

// Rounds to nearest, ties to even. NaN has no payload, as on a GPU.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  __nv_bfloat16 narrow;
  narrow.value_ =
      value == value ? lockstep::ToBFloat16(value) : lockstep::BFloat16{0x7fff};
  return narrow;
}

// A pair of bfloat16. Arithmetic rounds each result once, to nearest. On a GPU
// a product and a sum may be contracted, except by the calls that end in _rn.
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 value) {
  return {value, value};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 value) {
  return __floats2bfloat162_rn(value.x, value.y);
}
inline float2 __bfloat1622float2(__nv_bfloat162 value) {
  return {__bfloat162float(value.x), __bfloat162float(value.y)};
}
inline float __low2float(__nv_bfloat162 value) {
  return __bfloat162float(value.x);
}
inline float __high2float(__nv_bfloat162 value) {
  return __bfloat162float(value.y);
}

inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __float2bfloat16_rn(lockstep::standin::FmaToOdd(
      __bfloat162float(a), __bfloat162float(b), __bfloat162float(c)));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b,
                              __nv_bfloat162 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
inline __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __hfma2(a, __bfloat162bfloat162(__float2bfloat16_rn(1)), b);
}
inline __nv_bfloat162 __hsub2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __hfma2(b, __bfloat162bfloat162(__float2bfloat16_rn(-1)), a);
}
inline __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __hfma2(a, b, __bfloat162bfloat162(__float2bfloat16_rn(-0.0f)));
}
inline __nv_bfloat162 __hadd2_rn(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __hadd2(a, b);
}
inline __nv_bfloat162 __hsub2_rn(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __hsub2(a, b);
}
inline __nv_bfloat162 __hmul2_rn(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __hmul2(a, b);
}

// Returns the larger number. A number wins against NaN, and 0 against -0.
inline __nv_bfloat16 __hmax(__nv_bfloat16 a, __nv_bfloat16 b) {
  const float x = __bfloat162float(a);
  const float y = __bfloat162float(b);
  if (x == y) return std::signbit(x) ? b : a;
  if (x != x || y != y)
    return x != x ? (y != y ? __float2bfloat16_rn(x) : b) : a;
  return x > y ? a : b;
}
inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return {__hmax(a.x, b.x), __hmax(a.y, b.y)};
}

#endif  // LOCKSTEP_STANDIN_INCLUDE_CUDA_BF16_H_
