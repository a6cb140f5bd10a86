// The stand-in's bfloat16: the upper half of an IEEE 754 binary32.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_CUDA_BF16_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_CUDA_BF16_H_

#include <bit>
#include <cstdint>

// Has the size, alignment and bits of CUDA's, and no implicit conversions.
class __nv_bfloat16 {
 public:
  __nv_bfloat16() = default;

 private:
  friend unsigned short __bfloat16_as_ushort(__nv_bfloat16 value);
  friend __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits);

  unsigned short bits_;
};

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) {
  return value.bits_;
}

inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  __nv_bfloat16 value;
  value.bits_ = bits;
  return value;
}

// Exact.
inline float __bfloat162float(__nv_bfloat16 value) {
  return std::bit_cast<float>(uint32_t{__bfloat16_as_ushort(value)} << 16);
}

// Rounds to nearest, ties to even; NaN has no payload, as on a GPU.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return __ushort_as_bfloat16(0x7fff);
  const uint32_t odd = (bits >> 16) & 1;
  return __ushort_as_bfloat16(
      static_cast<unsigned short>((bits + 0x7fff + odd) >> 16));
}

inline __nv_bfloat16 __float2bfloat16(float value) {
  return __float2bfloat16_rn(value);
}

// One rounding each: float has more than twice the digits of bfloat16.
inline __nv_bfloat16 operator+(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
}
inline __nv_bfloat16 operator-(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __float2bfloat16_rn(__bfloat162float(a) - __bfloat162float(b));
}
inline __nv_bfloat16 operator*(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __float2bfloat16_rn(__bfloat162float(a) * __bfloat162float(b));
}

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_CUDA_BF16_H_
