// Elements of activations in device code: wide loads and stores, and float32
// for the arithmetic.
#ifndef LOCKSTEP_SYNCBN_CUDA_VECTOR_ACCESS_H_
#define LOCKSTEP_SYNCBN_CUDA_VECTOR_ACCESS_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

namespace lockstep {

// kSize elements that are loaded and stored at once.
template <typename T, int kSize>
struct alignas(sizeof(T) * kSize) Vector {
  T elements[kSize];
};

// Elements in 16 bytes, the widest load and store there is.
template <typename T>
inline constexpr int kVectorSize = 16 / int{sizeof(T)};

// from, to: aligned to the vector.
template <int kSize, typename T>
__device__ inline Vector<T, kSize> LoadVector(const T* from) {
  return *reinterpret_cast<const Vector<T, kSize>*>(from);
}
template <int kSize, typename T>
__device__ inline void StoreVector(const Vector<T, kSize>& vector, T* to) {
  *reinterpret_cast<Vector<T, kSize>*>(to) = vector;
}

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

#endif  // LOCKSTEP_SYNCBN_CUDA_VECTOR_ACCESS_H_
