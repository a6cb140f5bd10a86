// Kernels that write each element of activations from the same element of
// others and from numbers of its channel. Included by .cu files alone.
//
// An Operation, copied to the device, has
//   using Element;        What activations are of.
//   struct Coefficients;  The numbers of a channel.
//   Begin();              Called by each thread before all else.
//   At(channel);          Coefficients of a channel.
//   Apply<N>(place, c);   Does elements [place, place + N), whose coefficients
//                         are c[N], with accesses of N elements. Reads before
//                         it writes, so that outputs may be inputs.
#ifndef LOCKSTEP_SYNCBN_CUDA_ELEMENTWISE_H_
#define LOCKSTEP_SYNCBN_CUDA_ELEMENTWISE_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/cuda_status.h"
#include "syncbn/activations.h"
#include "syncbn/cuda/kernel_operands.h"
#include "syncbn/cuda/partition.h"

namespace lockstep {

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

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_ELEMENTWISE_H_
