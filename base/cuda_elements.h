// Vectors of elements, and 16-bit floats, in device code. Only .cu files
// include this header.
#ifndef LOCKSTEP_BASE_CUDA_ELEMENTS_H_
#define LOCKSTEP_BASE_CUDA_ELEMENTS_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace lockstep {

// kSize elements that are loaded and stored at once.
template <typename T, int kSize>
struct alignas(sizeof(T) * kSize) Vector {
  T elements[kSize];
};

// The widest load and store that a GPU has.
inline constexpr int64_t kVectorBytes = 16;

template <typename T>
inline constexpr bool kIsHalf =
    std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

template <typename T>
__device__ inline float ToFloat(T x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half2float(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat162float(x);
  } else {
    return x;
  }
}

// Rounds to nearest, ties to even.
template <typename T>
__device__ inline T RoundTo(float x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_CUDA_ELEMENTS_H_
