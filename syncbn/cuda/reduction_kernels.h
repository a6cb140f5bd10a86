// Kernels that reduce activations to a few numbers for each channel. Only .cu
// files include this header.
//
// Blocks reduce parts of a channel, or of some channels, to partial results in
// scratch memory. The last blocks to arrive merge the partial results of each
// channel (merge_kernels.h). Threads merge tiles of values in the order of
// their addresses, blocks merge their threads in a tree, and the last blocks
// merge the blocks in another tree. The order is always the same, so a
// partition always gives the same bits.
//
// A thread first takes single loads, until its state has started and the number
// of remaining loads is a multiple of a tile. Then it takes tiles.
//
// A Reduction, copied to the device, has
//   using Element;     The type of the activations.
//   using Item;        The value that Load makes of one element.
//   template State<N>; The results of N channels, of trivial type. A thread's
//                      part counts to less than 2^31. A State of zeros is the
//                      state of no elements.
//   kUnroll;           Vectors of each tensor that a thread loads at once.
//   kMergeUnroll;      Partial results of a channel that a thread loads at
//   once. Center(channel);   A number that Load subtracts. Load<N>(place,
//   center, wanted, items);  Loads the items of elements [place,
//                      place + N). If not `wanted`, items are arbitrary and
//                      memory is not accessed.
//   Started(state, n);  Whether the state has n values, if that matters.
//   AddFirst(state, k, items, valid, n);  Adds the n > 0 items whose bit is set
//                      in `valid` to channel k of the state.
//   AddTile(...);      The same, but faster, for a state that has started.
//   AddCount(state, n);   Called afterwards, once for all k.
//   Merge(a, b);          Makes a the state of both, with a first.
//   Part(state, k);       Returns the State<1> of channel k.
//   Store(channel, state);  Writes the result.
#ifndef LOCKSTEP_SYNCBN_CUDA_REDUCTION_KERNELS_H_
#define LOCKSTEP_SYNCBN_CUDA_REDUCTION_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "syncbn/cuda/merge_kernels.h"
#include "syncbn/cuda/partition.h"

namespace lockstep {

// Adds the next kVectors windows of a thread to the state.
template <bool kFirst, int kVectors, int kSize, bool kWhole, typename Reduction>
__device__ inline void AddWindows(
    const PlanesPartition& cut, const Reduction& reduction, float center,
    WindowCursor<kSize, kWhole>& at,
    typename Reduction::template State<1>& state) {
  constexpr int kItems = kVectors * kSize;
  typename Reduction::Item items[kItems];
  uint32_t bits = 0;
  float centers[kSize];
#pragma unroll
  for (int k = 0; k < kSize; ++k) centers[k] = center;
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    const uint32_t valid = at.valid(cut);
    typename Reduction::Item loaded[kSize];
    reduction.template Load<kSize>(at.place(cut), centers, valid != 0, loaded);
#pragma unroll
    for (int k = 0; k < kSize; ++k) items[u * kSize + k] = loaded[k];
    bits |= valid << u * kSize;
    at.Advance(cut);
  }
  if constexpr (kWhole) {
    AddItems<kFirst, Reduction>(state, items, AllValid(), kItems);
  } else if (bits != 0) {
    AddItems<kFirst, Reduction>(state, items, ValidBits{bits},
                                __builtin_popcount(bits));
  }
}

// Adds the channel's elements that are in no vector, one for each thread. There
// are fewer than two vectors of them.
template <typename Reduction>
__device__ inline void AddEnds(const PlanesPartition& cut,
                               const Reduction& reduction, int64_t channel,
                               typename Reduction::template State<1>& state) {
  const int64_t i = threadIdx.x;
  if (i >= cut.head + cut.size - cut.tail) return;
  const int64_t place = i < cut.head ? i : cut.tail + (i - cut.head);
  if (PixelStepOf(place, cut.c, cut.hw).channels != channel) return;
  AddElement(reduction, channel, place, state);
}

// The kernel for channels first. Each block handles (channel, split). kWhole:
// as in PlanesPartition.
template <int kSize, bool kWhole, typename Reduction>
__global__ void __launch_bounds__(kMaxThreads, 4)
    PlanesKernel(const __grid_constant__ PlanesPartition cut,
                 const __grid_constant__ PartialsPartition merge,
                 const __grid_constant__ Reduction reduction,
                 const __grid_constant__ ScratchOf<Reduction> scratch) {
  constexpr int kUnroll = Reduction::kUnroll;
  using State = typename Reduction::template State<1>;
  __shared__ State states[kMaxThreads];
  const int64_t channel = blockIdx.x;
  const float center = reduction.Center(channel);
  const int64_t begin = int64_t{blockIdx.y} * cut.chunk;
  const int64_t end =
      begin + cut.chunk < cut.items ? begin + cut.chunk : cut.items;
  State state = {};
  const int64_t first = begin + threadIdx.x;
  WindowCursor<kSize, kWhole> at(cut, channel, first);
  int left = CountSteps(first, end, blockDim.x);
#pragma unroll 1
  for (; left > 0 && (left % kUnroll != 0 || !Reduction::Started(state, kSize));
       --left) {
    AddWindows<true, 1>(cut, reduction, center, at, state);
  }
#pragma unroll 1
  for (; left > 0; left -= kUnroll) {
    AddWindows<false, kUnroll>(cut, reduction, center, at, state);
  }
  if (!kWhole && blockIdx.y == 0) AddEnds(cut, reduction, channel, state);
  states[threadIdx.x] = state;
  MergeRows<Reduction>(states, blockDim.x, 1);
  if (threadIdx.x == 0) {
    scratch.partials[blockIdx.y * cut.c + channel] = states[0];
  }
  MergeAsLastBlock</*kUnroll=*/1>(merge, reduction, scratch, states);
}

// Adds kRows rows from `place` on, `stride` elements apart, to the state.
template <bool kFirst, int kRows, int kSize, typename Reduction>
__device__ inline void AddRows(
    const Reduction& reduction, int64_t place, int64_t stride,
    const float (&centers)[kSize],
    typename Reduction::template State<kSize>& state) {
  typename Reduction::Item items[kSize][kRows];
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    typename Reduction::Item loaded[kSize];
    reduction.template Load<kSize>(place + u * stride, centers, true, loaded);
#pragma unroll
    for (int k = 0; k < kSize; ++k) items[k][u] = loaded[k];
  }
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    if constexpr (kFirst) {
      Reduction::AddFirst(state, k, items[k], AllValid(), kRows);
    } else {
      Reduction::AddTile(state, k, items[k], AllValid(), kRows);
    }
  }
  Reduction::AddCount(state, kRows);
}

// The kernel for channels last. Each block handles (tile of columns, split).
template <int kSize, typename Reduction>
__global__ void __launch_bounds__(kMaxThreads, kSize > 4 ? 3 : 4)
    RowsKernel(const __grid_constant__ RowsPartition cut,
               const __grid_constant__ PartialsPartition merge,
               const __grid_constant__ Reduction reduction,
               const __grid_constant__ ScratchOf<Reduction> scratch) {
  using State = typename Reduction::template State<kSize>;
  __shared__ union {
    State of_threads[kMaxThreads];
    typename Reduction::template State<1> merged[kMergedStates];
  } shared;
  State* const states = shared.of_threads;
  const int column = static_cast<int>(threadIdx.x) % cut.width;
  const int row = static_cast<int>(threadIdx.x) / cut.width;
  const int64_t vector = int64_t{blockIdx.x} * cut.width + column;
  State state = {};
  if (vector < cut.period) {
    float centers[kSize];
    int64_t channel = Divide(cut.head + vector * kSize, cut.c).remainder;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      centers[k] = reduction.Center(channel);
      if (++channel == cut.c) channel = 0;
    }
    const int64_t begin = int64_t{blockIdx.y} * cut.chunk;
    const int64_t end =
        begin + cut.chunk < cut.rows ? begin + cut.chunk : cut.rows;
    const int64_t stride = cut.height * cut.period * kSize;
    int64_t place = cut.head + ((begin + row) * cut.period + vector) * kSize;
    int left = CountSteps(begin + row, end, cut.height);
    constexpr int kUnroll = Reduction::kUnroll;
#pragma unroll 1
    for (; left > 0 && (left % kUnroll != 0 || !Reduction::Started(state, 1));
         --left) {
      AddRows<true, 1>(reduction, place, stride, centers, state);
      place += stride;
    }
#pragma unroll 1
    for (; left > 0; left -= kUnroll) {
      AddRows<false, kUnroll>(reduction, place, stride, centers, state);
      place += kUnroll * stride;
    }
  }
  states[threadIdx.x] = state;
  MergeRows<Reduction>(states, cut.height, cut.width);
  if (row == 0 && vector < cut.period) {
    const int64_t columns = cut.period * kSize;
    auto* const to = scratch.partials + blockIdx.y * columns + vector * kSize;
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      to[k] = Reduction::Part(states[threadIdx.x], k);
    }
  }
  if (merge.groups == 0) return;
  MergeAsLastBlock<Reduction::kMergeUnroll>(merge, reduction, scratch,
                                            shared.merged);
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_REDUCTION_KERNELS_H_
