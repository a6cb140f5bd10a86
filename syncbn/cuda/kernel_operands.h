// The operands of kernels in device code: elements of activations in wide loads
// and stores, with float32 for the arithmetic, and statistics records. Only .cu
// files include this header.
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
#include "base/cuda_elements.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// The number of elements in the widest load and store.
template <typename T>
inline constexpr int kVectorSize = int{kVectorBytes} / int{sizeof(T)};

// Load and store a vector. from, to: aligned to the vector.
template <int kSize, typename T>
__device__ inline Vector<T, kSize> LoadVector(const T* from) {
  return *reinterpret_cast<const Vector<T, kSize>*>(from);
}
template <int kSize, typename T>
__device__ inline void StoreVector(const Vector<T, kSize>& vector, T* to) {
#ifdef __CUDA_ARCH__
  // nvcc 13.0 splits the stores of all but the first of several vectors.
  if constexpr (sizeof(vector) == 16) {
    const uint4 words = __builtin_bit_cast(uint4, vector);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(to), "r"(words.x), "r"(words.y), "r"(words.z),
                   "r"(words.w)
                 : "memory");
    return;
  }
#endif
  *reinterpret_cast<Vector<T, kSize>*>(to) = vector;
}

// Converts the elements to float32.
template <typename T, int kSize>
__device__ inline void Widen(const Vector<T, kSize>& in, float (&out)[kSize]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16> && kSize % 2 == 0) {
    // A bfloat16 is the upper half of a float32, so one instruction converts
    // each. Extracting the elements first would cost another instruction.
    struct Words {
      uint32_t pairs[kSize / 2];
    };
    const Words words = __builtin_bit_cast(Words, in);
#pragma unroll
    for (int k = 0; k < kSize; k += 2) {
      const uint32_t pair = words.pairs[k / 2];
      out[k] = __builtin_bit_cast(float, pair << 16);
      out[k + 1] = __builtin_bit_cast(float, pair & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kSize; ++k) out[k] = ToFloat(in.elements[k]);
  }
}

// Rounds many elements. For 16-bit types one instruction rounds two of them.
template <typename T, int kSize>
__device__ inline Vector<T, kSize> Narrow(const float (&in)[kSize]) {
  Vector<T, kSize> out;
  if constexpr (sizeof(T) == 2 && kSize % 2 == 0) {
#pragma unroll
    for (int k = 0; k < kSize; k += 2) {
      if constexpr (std::is_same_v<T, __half>) {
        const __half2 pair = __floats2half2_rn(in[k], in[k + 1]);
        out.elements[k] = pair.x;
        out.elements[k + 1] = pair.y;
      } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(in[k], in[k + 1]);
        out.elements[k] = pair.x;
        out.elements[k + 1] = pair.y;
      }
    }
  } else {
#pragma unroll
    for (int k = 0; k < kSize; ++k) out.elements[k] = RoundTo<T>(in[k]);
  }
  return out;
}

// Returns run(T{}) for the activation type T. Returns kUnimplemented for types
// and layouts that the kernels do not support.
template <typename Function>
absl::Status SwitchType(DataType type, Layout layout, const Function& run) {
  if (layout == Layout::kNchw16c) {
    return absl::UnimplementedError(
        absl::StrCat("batch norm on a GPU has no kernels for layout ",
                     Name(layout), "; it has them for nchw and nhwc"));
  }
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

// Calls run(T{}) for each of these types and returns the first error.
template <typename Function>
absl::Status ForEveryType(const Function& run) {
  absl::Status status = run(float{});
  status.Update(run(__half{}));
  status.Update(run(__nv_bfloat16{}));
  return status;
}

// Returns the gradient before a ReLU: dy where the output y is positive or NaN,
// otherwise 0.
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

// Returns the parts of `record`, a StatisticsRecord of float32 at an address
// that is a multiple of 16.
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

// Sets the count, and sets the record's gaps to 0, because they are sent and
// saved too.
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

// The pointers are null if the statistics are not tracked.
struct RunningPointers {
  float* mean;
  float* variance;
};

// Lets a batch with this weight enter a channel's running statistics.
__device__ inline void Track(const RunningPointers& running, int64_t channel,
                             double weight, double mean, double variance) {
  running.mean[channel] =
      static_cast<float>((1 - weight) * running.mean[channel] + weight * mean);
  running.variance[channel] = static_cast<float>(
      (1 - weight) * running.variance[channel] + weight * variance);
}

// The memory that the statistics of a batch go to.
struct BatchOutputs {
  MergeOptions options;
  RunningPointers running = {};
  RecordPointers<float> saved;
};

// Stores a channel's statistics of the batch.
__device__ inline void StoreBatch(const BatchOutputs& out, int64_t channels,
                                  int64_t channel,
                                  const Moments<double>& batch) {
  const MergeOptions& options = out.options;
  const double variance = BiasedVariance(batch);
  if (channel == 0) StartRecord(out.saved, channels, batch.count);
  out.saved.mean[channel] = static_cast<float>(batch.mean);
  out.saved.second[channel] =
      static_cast<float>(InverseDeviation(variance, options.epsilon));
  const bool refused = batch.count == 1 && options.refuses_one_value;
  if (out.running.mean == nullptr || batch.count == 0 || refused) return;
  Track(out.running, channel, options.weight_of_batch, batch.mean,
        options.unbiased_running_variance ? UnbiasedVariance(batch) : variance);
}

// Returns a if `mask` is all ones, and b if it is 0, in one instruction. For ?:
// the compiler may make a branch for which the loads wait.
__device__ inline float Choose(uint32_t mask, float a, float b) {
  return __builtin_bit_cast(float,
                            (__builtin_bit_cast(uint32_t, a) & mask) |
                                (__builtin_bit_cast(uint32_t, b) & ~mask));
}

// Returns the pointer of an optional buffer, or null if it has no elements.
template <typename T, typename AnyBuffer>
auto PointerOrNull(const AnyBuffer& buffer) {
  using Pointer =
      std::conditional_t<std::is_same_v<AnyBuffer, Buffer>, T*, const T*>;
  return buffer.count == 0 ? nullptr : static_cast<Pointer>(buffer.data);
}

inline BatchOutputs OutputsOf(const BatchNormKernels::MergeCall& call) {
  return {.options = call.options,
          .running = {PointerOrNull<float>(call.running.mean),
                      PointerOrNull<float>(call.running.variance)},
          .saved = PointersOf<float>(call.saved, call.record.channels)};
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_KERNEL_OPERANDS_H_
