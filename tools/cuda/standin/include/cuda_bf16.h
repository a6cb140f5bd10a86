// The stand-in's bfloat16: the upper half of an IEEE 754 binary32, with the
// conversions of base/data_types.h.
#ifndef LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_CUDA_BF16_H_
#define LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_CUDA_BF16_H_

#include "base/data_types.h"

// Has the size, alignment and bits of CUDA's, and no implicit conversions.
class __nv_bfloat16 {
  friend float __bfloat162float(__nv_bfloat16 value);
  friend __nv_bfloat16 __float2bfloat16_rn(float value);

  lockstep::BFloat16 value_;
};

// Exact.
inline float __bfloat162float(__nv_bfloat16 value) {
  return lockstep::ToFloat(value.value_);
}

// Rounds to nearest, ties to even; NaN has no payload, as on a GPU.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  __nv_bfloat16 narrow;
  narrow.value_ =
      value == value ? lockstep::ToBFloat16(value) : lockstep::BFloat16{0x7fff};
  return narrow;
}

#endif  // LOCKSTEP_TOOLS_CUDA_STANDIN_INCLUDE_CUDA_BF16_H_
