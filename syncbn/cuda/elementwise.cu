// The element-wise operations of batch norm: normalising, and the gradient of
// the input. Each element is read once and written once, 16 bytes an access;
// the numbers of the channels stay in registers or in the first-level cache.
#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/cuda_status.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/cuda_batch_norm_kernels.h"
#include "syncbn/cuda/kernel_operands.h"
#include "syncbn/cuda/partition.h"

namespace lockstep {
namespace {

// Kernels that write each element of activations from the same element of
// others and from numbers of its channel.
//
// An Operation, copied to the device, has
//   using Element;        What activations are of.
//   struct Coefficients;  The numbers of a channel.
//   Begin();              Called by each thread before all else.
//   At(channel);          Coefficients of a channel.
//   Apply<N>(place, c);   Does elements [place, place + N), whose coefficients
//                         are c[N], with accesses of N elements. Reads before
//                         it writes, so that outputs may be inputs.

// The elements that are not in vectors, one at a time: threads see head and
// tail as one range.
template <int kSize, Layout kLayout, typename Operation>
__device__ inline void ApplySingles(const FlatPartition& cut,
                                    const Operation& operation, int64_t first) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = first; i < cut.singles(kSize); i += step) {
    const int64_t place = i < cut.head ? i : i + cut.vectors * kSize;
    const int64_t channel =
        kLayout == Layout::kNhwc
            ? Divide(place, cut.c).remainder
            : Divide(Divide(place, cut.hw).quotient, cut.c).remainder;
    const typename Operation::Coefficients c[1] = {operation.At(channel)};
    operation.template Apply<1>(place, c);
  }
}

// Channels last: a thread's vectors all have the same channels, whose
// coefficients it keeps in registers.
template <int kSize, typename Operation>
__global__ void __launch_bounds__(kMaxThreads)
    ChannelsLastKernel(FlatPartition cut, Operation operation) {
  operation.Begin();
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (first < cut.step && first < cut.vectors) {
    typename Operation::Coefficients c[kSize];
    int64_t channel = Divide(cut.head + first * kSize, cut.c).remainder;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      c[k] = operation.At(channel);
      if (++channel == cut.c) channel = 0;
    }
    for (int64_t i = first; i < cut.vectors; i += cut.step) {
      operation.template Apply<kSize>(cut.head + i * kSize, c);
    }
  }
  ApplySingles<kSize, Layout::kNhwc>(cut, operation, first);
}

// Of the kSize elements from `pixel` on: of one channel, or else of planes that
// follow one another.
template <int kSize, typename Operation>
__device__ inline void FillCoefficients(
    const Operation& operation, const PixelCursor& pixel,
    const FlatPartition& cut, typename Operation::Coefficients (&c)[kSize]) {
  int64_t channel = pixel.channel();
  c[0] = operation.At(channel);
  if (pixel.offset() + kSize <= cut.hw) {
#pragma unroll
    for (int k = 1; k < kSize; ++k) c[k] = c[0];
    return;
  }
  int64_t end = cut.hw - pixel.offset();  // Of the plane, counted in k.
#pragma unroll
  for (int k = 1; k < kSize; ++k) {
    c[k] = c[k - 1];
    if (k < end) continue;
    end += cut.hw;
    if (++channel == cut.c) channel = 0;
    c[k] = operation.At(channel);
  }
}

// Channels first: the coefficients are looked up for each vector.
template <int kSize, typename Operation>
__global__ void __launch_bounds__(kMaxThreads)
    ChannelsFirstKernel(FlatPartition cut, Operation operation) {
  operation.Begin();
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (first < cut.step) {
    PixelCursor pixel(cut.head + first * kSize, cut.step * kSize, cut.c,
                      cut.hw);
    for (int64_t i = first; i < cut.vectors; i += cut.step) {
      typename Operation::Coefficients c[kSize];
      FillCoefficients(operation, pixel, cut, c);
      operation.template Apply<kSize>(cut.head + i * kSize, c);
      pixel.Advance();
    }
  }
  ApplySingles<kSize, Layout::kNchw>(cut, operation, first);
}

// Enqueues the operation over all elements of `shape`, with accesses of kSize
// elements, or of one if `tensors` do not lie alike.
template <typename Operation>
absl::Status RunElementwise(const ActivationShape& shape,
                            std::span<const void* const> tensors,
                            const Operation& operation, int64_t max_blocks,
                            cudaStream_t stream, absl::string_view what) {
  if (shape.size() == 0) return absl::OkStatus();
  using Element = typename Operation::Element;
  constexpr int kSize = kVectorSize<Element>;
  const ActivationShape canonical = Canonical(shape);
  const bool last = canonical.layout == Layout::kNhwc;
  const int64_t past = ElementsPastBoundary(tensors, sizeof(Element), kSize);
  const bool wide = past >= 0;
  const FlatPartition cut =
      CutFlat(canonical, wide ? past : 0, wide ? kSize : 1, max_blocks);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(cut.blocks));
  config.blockDim = dim3(kMaxThreads);
  config.stream = stream;
  const auto launch = [&](auto kernel) {
    return CudaStatus(cudaLaunchKernelEx(&config, kernel, cut, operation),
                      what);
  };
  if (wide) {
    return last ? launch(ChannelsLastKernel<kSize, Operation>)
                : launch(ChannelsFirstKernel<kSize, Operation>);
  }
  return last ? launch(ChannelsLastKernel<1, Operation>)
              : launch(ChannelsFirstKernel<1, Operation>);
}

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

absl::Status CudaBatchNormKernels::Normalize(const NormalizeCall& call) {
  return SwitchType(call.x.type, [&]<typename T>(T) {
    const NormalizeOperation<T> operation = {
        .x = static_cast<const T*>(call.x.data),
        .residual = PointerOrNull<T>(call.residual),
        .weight = PointerOrNull<float>(call.weight),
        .bias = PointerOrNull<float>(call.bias),
        .saved = PointersOf<const float>(call.saved.bytes(), call.shape.c),
        .y = static_cast<T*>(call.y.data),
        .relu = call.relu};
    const void* const tensors[] = {operation.x, operation.residual,
                                   operation.y};
    return RunElementwise(call.shape, tensors, operation, max_blocks_, stream_,
                          "Normalize launch");
  });
}

absl::Status CudaBatchNormKernels::BackwardInput(const BackwardCall& call) {
  return SwitchType(call.x.type, [&]<typename T>(T) {
    const BackwardInputOperation<T> operation = {
        .x = static_cast<const T*>(call.x.data),
        .y = call.relu ? static_cast<const T*>(call.y.data) : nullptr,
        .dy = static_cast<const T*>(call.dy.data),
        .weight = PointerOrNull<float>(call.weight),
        .saved = PointersOf<const float>(call.saved.bytes(), call.shape.c),
        .sums = static_cast<const float*>(call.sums.data),
        .channels = call.shape.c,
        .dx = static_cast<T*>(call.dx.data),
        .dresidual = PointerOrNull<T>(call.dresidual),
        .share = 0};
    const void* const tensors[] = {operation.x, operation.y, operation.dy,
                                   operation.dx, operation.dresidual};
    return RunElementwise(call.shape, tensors, operation, max_blocks_, stream_,
                          "BackwardInput launch");
  });
}

}  // namespace lockstep
