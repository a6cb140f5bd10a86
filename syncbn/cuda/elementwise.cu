#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/cuda_launch.h"
#include "base/cuda_status.h"
#include "collectives/collective.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cuda/elementwise.h"
#include "syncbn/cuda/kernel_operands.h"
#include "syncbn/cuda/partition.h"

namespace lockstep {
namespace {

// Kernels that compute each element of activations from the same element of
// other activations and from numbers of its channel.
//
// An Operation, copied to the device, has
//   using Element;        The type of the activations.
//   kUnroll;              The vectors that a thread has under way at once.
//   kBlocks;              The blocks that a multiprocessor gets. Its registers
//                         are divided so that it holds all of them: they run at
//                         once, and none runs alone at the end. With kUnroll
//                         and kBlocks it has 32 KiB or more under way, 1.5
//                         times its share of the memory's bandwidth times the
//                         latency.
//   Inputs<N>;            The inputs of N elements.
//   struct Coefficients;  The numbers of a channel.
//   Begin();              Called first by each thread.
//   At(channel);          Returns the coefficients of a channel.
//   has_extra();          Whether there is an optional tensor to read.
//   Read<kExtra, N>(place);  Returns the inputs of elements [place, place + N),
//                         with accesses of N elements. kExtra: has_extra().
//   Write<kExtra, N>(place, inputs, c);  Computes and writes these elements,
//                         whose coefficients are c[N]. Each element is read
//                         before it is written, so outputs may be inputs.

// Processes the elements that are not in vectors, one at a time. Threads see
// head and tail as one range.
template <int kSize, Layout kLayout, typename Operation>
__device__ inline void ApplySingles(const FlatPartition& cut,
                                    const Operation& operation, int64_t first) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = first; i < cut.singles(kSize); i += step) {
    const int64_t place = i < cut.head ? i : i + cut.vectors * kSize;
    const auto channel = static_cast<int32_t>(
        kLayout == Layout::kNhwc
            ? Divide(place, cut.c).remainder
            : Divide(Divide(place, cut.hw).quotient, cut.c).remainder);
    const typename Operation::Coefficients c[1] = {operation.At(channel)};
    if (operation.has_extra()) {
      operation.template Write<true>(
          place, operation.template Read<true, 1>(place), c);
    } else {
      operation.template Write<false>(
          place, operation.template Read<false, 1>(place), c);
    }
  }
}

// Processes kVectors vectors, `stride` elements apart. next(c) sets the
// coefficients of the next vector, or returns false if that vector must be
// skipped.
template <bool kExtra, int kVectors, int kSize, typename Operation,
          typename Next>
__device__ inline void ApplyVectors(const Operation& operation, int64_t place,
                                    int64_t stride, Next& next) {
  typename Operation::template Inputs<kSize> in[kVectors];
  typename Operation::Coefficients c[kVectors][kSize];
  bool taken[kVectors];
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    taken[u] = next(c[u]);
    if (!taken[u]) continue;
    in[u] = operation.template Read<kExtra, kSize>(place + u * stride);
  }
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    if (!taken[u]) continue;
    operation.template Write<kExtra>(place + u * stride, in[u], c[u]);
  }
}

// Processes all vectors of a thread, from the last to the first.
template <bool kExtra, int kSize, typename Operation, typename Next>
__device__ inline void ApplyAll(const FlatPartition& cut,
                                const Operation& operation, int64_t first,
                                Next next) {
  constexpr int kUnroll = Operation::kUnroll;
  const int64_t stride = cut.stride;
  int64_t place = cut.head + cut.last(first) * kSize;
  int left = cut.count(first);
#pragma unroll 1
  for (; left >= kUnroll; left -= kUnroll) {
    ApplyVectors<kExtra, kUnroll, kSize>(operation, place, stride, next);
    place += kUnroll * stride;
  }
  if constexpr (kUnroll > 1) {
#pragma unroll 1
    for (; left > 0; --left) {
      ApplyVectors<kExtra, 1, kSize>(operation, place, stride, next);
      place += stride;
    }
  }
}

// The kernel for channels last. All vectors of a thread have the same channels,
// so the thread keeps their coefficients in registers.
template <int kSize, typename Operation>
__global__ void __launch_bounds__(kMaxThreads, Operation::kBlocks)
    ChannelsLastKernel(FlatPartition cut, Operation operation) {
  operation.Begin();
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (first < cut.step && first < cut.vectors) {
    typename Operation::Coefficients own[kSize];
    auto channel =
        static_cast<int32_t>(Divide(cut.head + first * kSize, cut.c).remainder);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      own[k] = operation.At(channel);
      if (++channel == cut.c) channel = 0;
    }
    const auto same = [&own](auto& c) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) c[k] = own[k];
      return true;
    };
    if (operation.has_extra()) {
      ApplyAll<true, kSize>(cut, operation, first, same);
    } else {
      ApplyAll<false, kSize>(cut, operation, first, same);
    }
  }
  ApplySingles<kSize, Layout::kNhwc>(cut, operation, first);
}

// Processes the vectors that belong to two planes: the last elements of one and
// the first of the next. Each end of a plane has its own thread.
template <bool kExtra, int kSize, typename Operation>
__device__ inline void ApplyEnds(const FlatPartition& cut,
                                 const Operation& operation, int64_t first) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t tail = cut.head + cut.vectors * kSize;
#pragma unroll 1
  for (int64_t plane = first; (plane + 1) * cut.hw < tail; plane += step) {
    const int64_t end = (plane + 1) * cut.hw;
    // The number of the vector's elements that belong to this plane.
    const int left = static_cast<int>((end - cut.head) & (kSize - 1));
    if (end < cut.head || left == 0) continue;
    const auto channel = static_cast<int32_t>(Divide(plane, cut.c).remainder);
    const auto next = channel + 1 == cut.c ? 0 : channel + 1;
    const typename Operation::Coefficients before = operation.At(channel);
    const typename Operation::Coefficients after = operation.At(next);
    typename Operation::Coefficients c[kSize];
#pragma unroll
    for (int k = 0; k < kSize; ++k) c[k] = k < left ? before : after;
    operation.template Write<kExtra>(
        end - left, operation.template Read<kExtra, kSize>(end - left), c);
  }
}

// The kernel for channels first. The coefficients are looked up for each
// vector. kWhole: every plane is whole vectors. If it is false, no plane is
// smaller than a vector.
template <int kSize, bool kWhole, typename Operation>
__global__ void __launch_bounds__(kMaxThreads, Operation::kBlocks)
    ChannelsFirstKernel(FlatPartition cut, Operation operation) {
  operation.Begin();
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (first < cut.step && first < cut.vectors) {
    PixelCursor pixel(cut.head + cut.last(first) * kSize, cut.pixel_step_back,
                      cut.c, cut.hw);
    const auto look_up = [&](auto& c) {
      const bool of_one = kWhole || pixel.offset() + kSize <= cut.hw;
      if (of_one) {
        const auto own = operation.At(pixel.channel());
#pragma unroll
        for (int k = 0; k < kSize; ++k) c[k] = own;
      }
      pixel.Advance();
      return of_one;
    };
    if (operation.has_extra()) {
      ApplyAll<true, kSize>(cut, operation, first, look_up);
    } else {
      ApplyAll<false, kSize>(cut, operation, first, look_up);
    }
  }
  if (!kWhole && operation.has_extra()) {
    ApplyEnds<true, kSize>(cut, operation, first);
  } else if (!kWhole) {
    ApplyEnds<false, kSize>(cut, operation, first);
  }
  ApplySingles<kSize, Layout::kNchw>(cut, operation, first);
}

template <typename Operation>
absl::Status LoadElementwise() {
  constexpr int kSize = kVectorSize<typename Operation::Element>;
  return LoadKernels(ChannelsLastKernel<kSize, Operation>,
                     ChannelsLastKernel<1, Operation>,
                     ChannelsFirstKernel<kSize, true, Operation>,
                     ChannelsFirstKernel<kSize, false, Operation>,
                     ChannelsFirstKernel<1, true, Operation>);
}

// Enqueues the operation over all elements of `shape`. Accesses have kSize
// elements, or a single one if `tensors` are aligned differently or planes are
// smaller.
template <typename Operation>
absl::Status RunElementwise(const ActivationShape& shape,
                            std::span<const void* const> tensors,
                            const Operation& operation,
                            const ElementwiseGrid& grid, cudaStream_t stream,
                            absl::string_view what) {
  if (shape.size() == 0) return absl::OkStatus();
  using Element = typename Operation::Element;
  constexpr int kSize = kVectorSize<Element>;
  const ActivationShape canonical = CanonicalShape(shape);
  const bool last = canonical.layout == Layout::kNhwc;
  const int64_t past = ElementsPastBoundary(tensors, sizeof(Element), kSize);
  const bool wide = past >= 0 && (last || canonical.hw >= kSize);
  const FlatPartition cut =
      CutFlat(canonical, wide ? past : 0, wide ? kSize : 1,
              grid.max_blocks > 0 ? grid.max_blocks
                                  : Operation::kBlocks * grid.multiprocessors);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(cut.blocks));
  config.blockDim = dim3(kMaxThreads);
  config.stream = stream;
  const auto launch = [&](auto kernel) {
    return CudaStatus(cudaLaunchKernelEx(&config, kernel, cut, operation),
                      what);
  };
  if (last) {
    return wide ? launch(ChannelsLastKernel<kSize, Operation>)
                : launch(ChannelsLastKernel<1, Operation>);
  }
  return !wide       ? launch(ChannelsFirstKernel<1, true, Operation>)
         : cut.whole ? launch(ChannelsFirstKernel<kSize, true, Operation>)
                     : launch(ChannelsFirstKernel<kSize, false, Operation>);
}

// Sets y = (x - mean) * inverse deviation * weight + bias, then + residual,
// then ReLU.
template <typename T>
struct NormalizeOperation {
  using Element = T;
  static constexpr int kUnroll = 2;
  static constexpr int kBlocks = 4;
  template <int kSize>
  struct Inputs {
    Vector<T, kSize> x;
    Vector<T, kSize> residual;
  };
  struct Coefficients {
    float mean;
    float scale;
    float bias;
  };

  __device__ void Begin() {}

  __device__ Coefficients At(int32_t channel) const {
    const float weight_here = weight[channel];
    const float bias_here = bias[channel];
    return {saved.mean[channel],
            saved.second[channel] * Choose(affine, weight_here, 1),
            Choose(affine, bias_here, 0)};
  }

  __device__ bool has_extra() const { return residual != nullptr; }

  template <bool kExtra, int kSize>
  __device__ Inputs<kSize> Read(int64_t place) const {
    Inputs<kSize> in = {};
    in.x = LoadVector<kSize>(x + place);
    if (kExtra) in.residual = LoadVector<kSize>(residual + place);
    return in;
  }

  template <bool kExtra, int kSize>
  __device__ void Write(int64_t place, const Inputs<kSize>& in,
                        const Coefficients (&c)[kSize]) const {
    float values[kSize];
    float added[kSize];
    Widen(in.x, values);
    Widen(in.residual, added);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      float value = (values[k] - c[k].mean) * c[k].scale + c[k].bias;
      if (kExtra) value += added[k];
      // A NaN is not less than any number, so it stays.
      values[k] = value < least ? least : value;
    }
    StoreVector(Narrow<T>(values), y + place);
  }

  const T* x;
  const T* residual;
  // If the layer is not affine: any [c], whose values are not used.
  const float* weight;
  const float* bias;
  uint32_t affine;  // All ones, or 0.
  RecordPointers<const float> saved;
  T* y;
  float least;  // The least y: 0 with ReLU, else -infinity.
};

// Sets dx = weight * inverse deviation * (g - sum of g / count - (x - mean) *
// inverse deviation * sum of g * normalised x / count).
template <typename T>
struct BackwardInputOperation {
  using Element = T;
  // Each vector is loaded from two or three tensors.
  static constexpr int kUnroll = 1;
  static constexpr int kBlocks = 3;
  template <int kSize>
  struct Inputs {
    Vector<T, kSize> x;
    Vector<T, kSize> y;
    Vector<T, kSize> dy;
  };
  struct Coefficients {
    float mean;
    float scale;
    float mean_gradient;
    float slope;  // The factor of x - mean.
  };

  __device__ void Begin() {
    const int64_t count = *saved.count;
    share = count == 0 ? 0 : 1 / static_cast<float>(count);
  }

  __device__ Coefficients At(int32_t channel) const {
    const float inverse = saved.second[channel];
    const float weight_here = weight[channel];
    Coefficients c = {0, inverse * Choose(affine, weight_here, 1), 0, 0};
    // The mean and the sums have no effect, whatever their values.
    if (share == 0) return c;
    c.mean = saved.mean[channel];
    c.mean_gradient = sums[channel] * share;
    c.slope = sums[channels + channel] * share * inverse;
    return c;
  }

  __device__ bool has_extra() const { return y != nullptr; }

  template <bool kExtra, int kSize>
  __device__ Inputs<kSize> Read(int64_t place) const {
    Inputs<kSize> in = {};
    // x has no effect in this case, so it stays 0.
    if (share != 0) in.x = LoadVector<kSize>(x + place);
    in.dy = LoadVector<kSize>(dy + place);
    if (kExtra) in.y = LoadVector<kSize>(y + place);
    return in;
  }

  template <bool kExtra, int kSize>
  __device__ void Write(int64_t place, const Inputs<kSize>& in,
                        const Coefficients (&c)[kSize]) const {
    float values[kSize];
    float g[kSize];
    float output[kSize];
    Widen(in.x, values);
    Widen(in.dy, g);
    Widen(in.y, output);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      if (kExtra) g[k] = ReluGradient(g[k], output[k]);
      values[k] = c[k].scale * (g[k] - c[k].mean_gradient -
                                (values[k] - c[k].mean) * c[k].slope);
    }
    StoreVector(Narrow<T>(values), dx + place);
    if (dresidual != nullptr) StoreVector(Narrow<T>(g), dresidual + place);
  }

  const T* x;
  const T* y;  // Null without ReLU.
  const T* dy;
  const float* weight;  // If not affine: any [c].
  uint32_t affine;      // All ones, or 0.
  RecordPointers<const float> saved;
  const float* sums;
  int64_t channels;
  T* dx;
  T* dresidual;
  float share;  // 1 / count, or 0.
};

}  // namespace

absl::Status LoadElementwiseKernels() {
  return ForEveryType([]<typename T>(T) {
    absl::Status status = LoadElementwise<NormalizeOperation<T>>();
    status.Update(LoadElementwise<BackwardInputOperation<T>>());
    return status;
  });
}

absl::Status NormalizeOnGpu(const BatchNormKernels::NormalizeCall& call,
                            const ElementwiseGrid& grid, cudaStream_t stream) {
  return SwitchType(call.x.type, call.shape.layout, [&]<typename T>(T) {
    const auto saved =
        PointersOf<const float>(call.saved.bytes(), call.shape.c);
    const bool affine = call.weight.count > 0;
    const NormalizeOperation<T> operation = {
        .x = static_cast<const T*>(call.x.data),
        .residual = PointerOrNull<T>(call.residual),
        .weight =
            affine ? static_cast<const float*>(call.weight.data) : saved.mean,
        .bias = affine ? static_cast<const float*>(call.bias.data) : saved.mean,
        .affine = affine ? ~uint32_t{0} : 0,
        .saved = saved,
        .y = static_cast<T*>(call.y.data),
        .least = call.relu ? 0 : -std::numeric_limits<float>::infinity()};
    const void* const tensors[] = {operation.x, operation.residual,
                                   operation.y};
    return RunElementwise(call.shape, tensors, operation, grid, stream,
                          "Normalize launch");
  });
}

absl::Status InputGradientOnGpu(const BatchNormKernels::BackwardCall& call,
                                const ElementwiseGrid& grid,
                                cudaStream_t stream) {
  return SwitchType(call.x.type, call.shape.layout, [&]<typename T>(T) {
    const auto saved =
        PointersOf<const float>(call.saved.bytes(), call.shape.c);
    const bool affine = call.weight.count > 0;
    const BackwardInputOperation<T> operation = {
        .x = static_cast<const T*>(call.x.data),
        .y = call.relu ? static_cast<const T*>(call.y.data) : nullptr,
        .dy = static_cast<const T*>(call.dy.data),
        .weight =
            affine ? static_cast<const float*>(call.weight.data) : saved.mean,
        .affine = affine ? ~uint32_t{0} : 0,
        .saved = saved,
        .sums = static_cast<const float*>(call.sums.data),
        .channels = call.shape.c,
        .dx = static_cast<T*>(call.dx.data),
        .dresidual = PointerOrNull<T>(call.dresidual),
        .share = 0};
    const void* const tensors[] = {operation.x, operation.y, operation.dy,
                                   operation.dx, operation.dresidual};
    return RunElementwise(call.shape, tensors, operation, grid, stream,
                          "BackwardInput launch");
  });
}

}  // namespace lockstep
