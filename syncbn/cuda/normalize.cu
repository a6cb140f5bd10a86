// Normalising: y = (x - mean) * inverse deviation * weight + bias, + residual,
// ReLU. Each element is read once and written once, 16 bytes an access; the
// numbers of the channels stay in registers or in the first-level cache.
#include <cstdint>

#include "absl/status/status.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/elementwise.h"
#include "syncbn/cuda/normalize.h"
#include "syncbn/cuda/record_view.h"
#include "syncbn/cuda/type_switch.h"
#include "syncbn/cuda/vector_access.h"

namespace lockstep {
namespace {

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
  RecordView<const float> saved;
  T* y;
  bool relu;
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
        .saved = ViewRecord<const float>(call.saved, call.shape.c),
        .y = static_cast<T*>(call.y.data),
        .relu = call.relu};
    const void* const tensors[] = {operation.x, operation.residual,
                                   operation.y};
    return RunElementwise(call.shape, tensors, operation, max_blocks, stream,
                          "Normalize launch");
  });
}

}  // namespace lockstep
