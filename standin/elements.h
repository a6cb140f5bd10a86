// Elements of the floating-point types in which the stand-ins for cuDNN and
// cuBLASLt compute: float32, float16 and bfloat16.
#ifndef LOCKSTEP_STANDIN_ELEMENTS_H_
#define LOCKSTEP_STANDIN_ELEMENTS_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/data_types.h"
#include "standin/include/cuda_bf16.h"
#include "standin/include/cuda_fp16.h"

namespace lockstep::standin {

// Returns the value in float32, rounded to odd. Rounding this number to 16 bits
// gives the same result as rounding the value.
inline float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  if (nearest == value || std::isnan(value) ||
      std::bit_cast<uint32_t>(nearest) % 2 == 1) {
    return nearest;
  }
  constexpr float kInfinity = INFINITY;
  return std::nextafter(nearest, value > nearest ? kInfinity : -kInfinity);
}

// Returns element i of memory that holds elements of `type`.
inline double ReadElement(DataType type, const void* data, int64_t i) {
  switch (type) {
    case DataType::kFloat16:
      return __half2float(static_cast<const __half*>(data)[i]);
    case DataType::kBFloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

// Writes element i. Rounds once, to nearest, ties to even.
inline void WriteElement(DataType type, double value, void* data, int64_t i) {
  switch (type) {
    case DataType::kFloat16:
      static_cast<__half*>(data)[i] = __float2half_rn(RoundToOdd(value));
      return;
    case DataType::kBFloat16:
      static_cast<__nv_bfloat16*>(data)[i] =
          __float2bfloat16_rn(RoundToOdd(value));
      return;
    default:
      static_cast<float*>(data)[i] = static_cast<float>(value);
  }
}

}  // namespace lockstep::standin

#endif  // LOCKSTEP_STANDIN_ELEMENTS_H_
