// The element-wise operations of batch norm: normalising, and the gradient of
// the input. Each element is read once and written once, 16 bytes an access;
// the numbers of the channels stay in registers or in the first-level cache.
#include <cstdint>

#include "absl/status/status.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/elementwise.h"
#include "syncbn/cuda/kernel_operands.h"
#include "syncbn/cuda/kernels.h"

namespace lockstep {
namespace {

// y = (x - mean) * inverse deviation * weight + bias, + residual, ReLU.
template <typename T>
struct NormalizeOperation {
  using Element = T;
  struct Coefficients {
    float mean;
    float scale;
    float bias;
  };

  __device__ void Begin() {}

  __device__ Coefficients At(int64_t channel) const {
    const float weight_here = weight == nullptr ? 1 : weight[channel];
    return {saved.mean[channel], saved.second[channel] * weight_here,
            bias == nullptr ? 0 : bias[channel]};
  }

  template <int kSize>
  __device__ void Apply(int64_t place, const Coefficients (&c)[kSize]) const {
    const Vector<T, kSize> in = LoadVector<kSize>(x + place);
    Vector<T, kSize> added = {};
    if (residual != nullptr) added = LoadVector<kSize>(residual + place);
    Vector<T, kSize> out;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      float value =
          (ToFloat(in.elements[k]) - c[k].mean) * c[k].scale + c[k].bias;
      if (residual != nullptr) value += ToFloat(added.elements[k]);
      // NaN is not less than 0.
      if (relu && value < 0) value = 0;
      out.elements[k] = RoundTo<T>(value);
    }
    StoreVector(out, y + place);
  }

  const T* x;
  const T* residual;
  const float* weight;
  const float* bias;
  RecordPointers<const float> saved;
  T* y;
  bool relu;
};

// dx = weight * inverse deviation * (g - sum of g / count - (x - mean) *
// inverse deviation * sum of g * normalised x / count).
template <typename T>
struct BackwardInputOperation {
  using Element = T;
  struct Coefficients {
    float mean;
    float scale;
    float mean_gradient;
    float slope;  // Of the part that x - mean takes.
  };

  __device__ void Begin() {
    const int64_t count = *saved.count;
    share = count == 0 ? 0 : 1 / static_cast<float>(count);
  }

  __device__ Coefficients At(int64_t channel) const {
    const float inverse = saved.second[channel];
    const float weight_here = weight == nullptr ? 1 : weight[channel];
    Coefficients c = {saved.mean[channel], inverse * weight_here, 0, 0};
    if (share == 0) return c;  // The sums count for nothing, whatever they are.
    c.mean_gradient = sums[channel] * share;
    c.slope = sums[channels + channel] * share * inverse;
    return c;
  }

  template <int kSize>
  __device__ void Apply(int64_t place, const Coefficients (&c)[kSize]) const {
    const Vector<T, kSize> in = LoadVector<kSize>(x + place);
    Vector<T, kSize> gradient = LoadVector<kSize>(dy + place);
    if (y != nullptr) {
      const Vector<T, kSize> output = LoadVector<kSize>(y + place);
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        gradient.elements[k] = RoundTo<T>(ReluGradient(
            ToFloat(gradient.elements[k]), ToFloat(output.elements[k])));
      }
    }
    Vector<T, kSize> out;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      const float centered = ToFloat(in.elements[k]) - c[k].mean;
      const float g = ToFloat(gradient.elements[k]);
      out.elements[k] = RoundTo<T>(
          c[k].scale * (g - c[k].mean_gradient - centered * c[k].slope));
    }
    StoreVector(out, dx + place);
    if (dresidual != nullptr) StoreVector(gradient, dresidual + place);
  }

  const T* x;
  const T* y;  // Null without ReLU.
  const T* dy;
  const float* weight;
  RecordPointers<const float> saved;
  const float* sums;
  int64_t channels;
  T* dx;
  T* dresidual;
  float share;  // 1 / count, or 0.
};

}  // namespace

absl::Status Normalize(const BatchNormKernels::NormalizeCall& call,
                       int64_t max_blocks, cudaStream_t stream) {
  return SwitchType(call.x.type, [&]<typename T>(T) {
    // An absent buffer has no elements, whatever its pointer is.
    const bool adds = call.residual.count > 0;
    const NormalizeOperation<T> operation = {
        .x = static_cast<const T*>(call.x.data),
        .residual = adds ? static_cast<const T*>(call.residual.data) : nullptr,
        .weight = PointerOrNull<float>(call.weight),
        .bias = PointerOrNull<float>(call.bias),
        .saved = PointersOf<const float>(call.saved, call.shape.c),
        .y = static_cast<T*>(call.y.data),
        .relu = call.relu};
    const void* const tensors[] = {operation.x, operation.residual,
                                   operation.y};
    return RunElementwise(call.shape, tensors, operation, max_blocks, stream,
                          "Normalize launch");
  });
}

absl::Status BackwardInput(const BatchNormKernels::BackwardCall& call,
                           ConstBuffer sums, Buffer dx, Buffer dresidual,
                           int64_t max_blocks, cudaStream_t stream) {
  return SwitchType(call.x.type, [&]<typename T>(T) {
    const BackwardInputOperation<T> operation = {
        .x = static_cast<const T*>(call.x.data),
        .y = call.relu ? static_cast<const T*>(call.y.data) : nullptr,
        .dy = static_cast<const T*>(call.dy.data),
        .weight = PointerOrNull<float>(call.weight),
        .saved = PointersOf<const float>(call.saved, call.shape.c),
        .sums = static_cast<const float*>(sums.data),
        .channels = call.shape.c,
        .dx = static_cast<T*>(dx.data),
        .dresidual = PointerOrNull<T>(dresidual),
        .share = 0};
    const void* const tensors[] = {operation.x, operation.y, operation.dy,
                                   operation.dx, operation.dresidual};
    return RunElementwise(call.shape, tensors, operation, max_blocks, stream,
                          "BackwardInput launch");
  });
}

}  // namespace lockstep
