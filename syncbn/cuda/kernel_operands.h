// What kernels work on, as device code sees it: elements of activations in wide
// loads and stores, with float32 for the arithmetic, and statistics records.
// Included by .cu files alone.
#ifndef LOCKSTEP_SYNCBN_CUDA_KERNEL_OPERANDS_H_
#define LOCKSTEP_SYNCBN_CUDA_KERNEL_OPERANDS_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm_kernels.h"

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

// run(T{}) of an activation type T; kUnimplemented for those that kernels lack.
template <typename Function>
absl::Status SwitchType(DataType type, const Function& run) {
  switch (type) {
    case DataType::kFloat32:
      return run(float{});
    case DataType::kFloat16:
      return run(__half{});
    case DataType::kBFloat16:
      return run(__nv_bfloat16{});
    default:
      return absl::UnimplementedError(
          absl::StrCat("batch norm on a GPU has no kernels for ", Name(type),
                       "; it has them for float32, float16 and bfloat16"));
  }
}

// The gradient behind a ReLU: dy where the output y is positive or NaN, else 0.
__device__ inline float ReluGradient(float dy, float y) {
  return y <= 0 ? 0 : dy;
}

// The parts of a statistics record in device memory. F: float or const float.
template <typename F>
struct RecordPointers {
  template <typename T>
  using AsConstAsF = std::conditional_t<std::is_const_v<F>, const T, T>;

  AsConstAsF<int64_t>* count = nullptr;
  F* mean = nullptr;
  F* second = nullptr;  // M2, or the inverse deviation.
};

// record: a StatisticsRecord of float32 at an address that 16 divides.
template <typename F>
RecordPointers<F> PointersOf(
    typename RecordPointers<F>::template AsConstAsF<std::byte>* record,
    int64_t channels) {
  const StatisticsRecord layout = {.channels = channels,
                                   .type = DataType::kFloat32};
  using Count = typename RecordPointers<F>::template AsConstAsF<int64_t>;
  return {reinterpret_cast<Count*>(record), layout.Mean<float>(record),
          layout.Second<float>(record)};
}

// Sets the count, and the record's gaps, which are sent and saved too, to 0.
__device__ inline void StartRecord(const RecordPointers<float>& record,
                                   int64_t channels, int64_t count) {
  record.count[0] = count;
  record.count[1] = 0;
  // Both arrays together are rounded up to 4 floats.
  if (channels % 2 != 0) {
    record.second[channels] = 0;
    record.second[channels + 1] = 0;
  }
}

// What an optional buffer points to: null if it has no elements.
template <typename T, typename AnyBuffer>
auto PointerOrNull(const AnyBuffer& buffer) {
  using Pointer =
      std::conditional_t<std::is_same_v<AnyBuffer, Buffer>, T*, const T*>;
  return buffer.count == 0 ? nullptr : static_cast<Pointer>(buffer.data);
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_KERNEL_OPERANDS_H_
