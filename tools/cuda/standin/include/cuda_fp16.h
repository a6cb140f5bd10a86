// The stand-in's half precision: IEEE 754 binary16, with the conversions of
// base/data_types.h.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_CUDA_FP16_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_CUDA_FP16_H_

#include <bit>

#include "base/data_types.h"

// Has the size, alignment and bits of CUDA's, and no implicit conversions.
class __half {
  friend float __half2float(__half value);
  friend __half __float2half_rn(float value);

  lockstep::Float16 value_;
};

// Exact; NaN has no payload, as on a GPU.
inline float __half2float(__half value) {
  const float wide = lockstep::ToFloat(value.value_);
  return wide == wide ? wide : std::bit_cast<float>(0x7fffffffu);
}

// Rounds to nearest, ties to even; NaN as above.
inline __half __float2half_rn(float value) {
  __half narrow;
  narrow.value_ =
      value == value ? lockstep::ToFloat16(value) : lockstep::Float16{0x7fff};
  return narrow;
}

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_CUDA_FP16_H_
