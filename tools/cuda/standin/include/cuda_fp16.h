// The stand-in's half precision: IEEE 754 binary16.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_CUDA_FP16_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_CUDA_FP16_H_

#include <bit>
#include <cstdint>

// Has the size, alignment and bits of CUDA's, and no implicit conversions.
class __half {
 public:
  __half() = default;

 private:
  friend unsigned short __half_as_ushort(__half value);
  friend __half __ushort_as_half(unsigned short bits);

  unsigned short bits_;
};

inline unsigned short __half_as_ushort(__half value) { return value.bits_; }

inline __half __ushort_as_half(unsigned short bits) {
  __half value;
  value.bits_ = bits;
  return value;
}

// Exact; NaN has no payload, as on a GPU.
inline float __half2float(__half value) {
  const uint32_t bits = __half_as_ushort(value);
  const uint32_t sign = (bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7fff;
  if (magnitude > 0x7c00) return std::bit_cast<float>(0x7fffffffu);
  if (magnitude == 0x7c00) return std::bit_cast<float>(sign | 0x7f800000);
  if (magnitude < 0x0400) {  // Zero or subnormal: a multiple of 2^-24.
    const float positive = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(positive));
  }
  // The exponents' biases, 127 and 15, differ by 112.
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
}

// Rounds to nearest, ties to even.
inline __half __float2half_rn(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t rounded;
  if (magnitude > 0x7f800000) {
    return __ushort_as_half(0x7fff);
  } else if (magnitude >= 0x477ff000) {  // 65520, halfway past the greatest.
    rounded = 0x7c00;
  } else if (magnitude < 0x38800000) {  // 2^-14: subnormal below it.
    // In [0.5, 1) floats are 2^-24 apart, as subnormal halves are.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    rounded = std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f);
  } else {
    const uint32_t odd = (magnitude >> 13) & 1;
    rounded = (magnitude + 0xfff + odd - (112u << 23)) >> 13;
  }
  return __ushort_as_half(static_cast<unsigned short>(sign | rounded));
}

inline __half __float2half(float value) { return __float2half_rn(value); }

// One rounding each: float has more than twice the digits of half.
inline __half operator+(__half a, __half b) {
  return __float2half_rn(__half2float(a) + __half2float(b));
}
inline __half operator-(__half a, __half b) {
  return __float2half_rn(__half2float(a) - __half2float(b));
}
inline __half operator*(__half a, __half b) {
  return __float2half_rn(__half2float(a) * __half2float(b));
}

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_CUDA_FP16_H_
