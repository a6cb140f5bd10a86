// Kernels that reduce activations to a few numbers for each channel. Only .cu
// files include this header.
//
// Blocks reduce parts of a channel, or of some channels, to partial results in
// scratch memory. A last kernel merges the partial results of each channel.
// Threads merge tiles of values in the order of their addresses, blocks merge
// their threads in a tree, and the last kernel merges the blocks in the same
// way. The order is always the same and there are no atomics, so a partition
// always gives the same bits.
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
//   Center(channel);   A number that Load subtracts.
//   Load<N>(place, center, wanted, items);  Loads the items of elements [place,
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

#include "syncbn/cuda/partition.h"

namespace lockstep {

// Merges the states of a block's threads in a tree over rows. `states` holds
// `height` rows of `width` states; the result is in the first row. Every thread
// of the block must call this function, with the row of its state.
template <typename Reduction, typename State>
__device__ inline void MergeRowsOfBlock(State* states, int row, int height,
                                        int width) {
  int half = 1;
  while (half < height) half *= 2;
  State* const own = states + threadIdx.x;
  for (half /= 2; half > 0; half /= 2) {
    __syncthreads();
    if (row < half && row + half < height) {
      Reduction::Merge(*own, own[half * width]);
    }
  }
}

// Marks every item of a tile as valid, which is known at compile time.
struct AllValid {
  __device__ constexpr bool operator[](int) const { return true; }
};

// Marks the items whose bit is set as valid.
struct ValidBits {
  __device__ bool operator[](int i) const { return (bits >> i & 1) != 0; }
  uint32_t bits;
};

// Adds n > 0 items to the state of one channel.
template <bool kFirst, typename Reduction, int kItems, typename Valid>
__device__ inline void AddItems(typename Reduction::template State<1>& state,
                                const typename Reduction::Item (&items)[kItems],
                                const Valid& valid, int n) {
  if constexpr (kFirst) {
    Reduction::AddFirst(state, 0, items, valid, n);
  } else {
    Reduction::AddTile(state, 0, items, valid, n);
  }
  Reduction::AddCount(state, n);
}

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

// Adds one element to the state.
template <typename Reduction>
__device__ inline void AddElement(
    const Reduction& reduction, int64_t channel, int64_t place,
    typename Reduction::template State<1>& state) {
  const float center[1] = {reduction.Center(channel)};
  typename Reduction::Item item[1];
  reduction.template Load<1>(place, center, true, item);
  AddItems<true, Reduction>(state, item, AllValid(), 1);
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
    PlanesKernel(PlanesPartition cut, Reduction reduction,
                 typename Reduction::template State<1>* partials) {
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
  MergeRowsOfBlock<Reduction>(states, threadIdx.x, blockDim.x, 1);
  if (threadIdx.x == 0) partials[blockIdx.y * cut.c + channel] = states[0];
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
    RowsKernel(RowsPartition cut, Reduction reduction,
               typename Reduction::template State<1>* partials) {
  using State = typename Reduction::template State<kSize>;
  __shared__ State states[kMaxThreads];
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
  MergeRowsOfBlock<Reduction>(states, row, cut.height, cut.width);
  if (row > 0 || vector >= cut.period) return;
  const int64_t columns = cut.period * kSize;
  auto* const to = partials + blockIdx.y * columns + vector * kSize;
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    to[k] = Reduction::Part(states[threadIdx.x], k);
  }
}

// Adds the elements of a channel that no block handled.
template <typename Reduction>
__device__ inline void AddLeftovers(
    const PartialsPartition& cut, const Reduction& reduction, int64_t channel,
    typename Reduction::template State<1>& state) {
  const int64_t in_head =
      cut.head > channel ? (cut.head - 1 - channel) / cut.c + 1 : 0;
  const int64_t past = Divide(cut.tail, cut.c).remainder;
  const int64_t first =
      cut.tail + (channel >= past ? channel - past : channel + cut.c - past);
  const int64_t in_tail =
      cut.size > first ? (cut.size - 1 - first) / cut.c + 1 : 0;
  for (int64_t i = threadIdx.x; i < in_head + in_tail; i += blockDim.x) {
    AddElement(
        reduction, channel,
        i < in_head ? channel + i * cut.c : first + (i - in_head) * cut.c,
        state);
  }
}

// Merges the partial results of a channel and stores the result. Each block
// handles one channel.
template <typename Reduction>
__global__ void __launch_bounds__(kMaxThreads)
    PartialsKernel(PartialsPartition cut, Reduction reduction,
                   const typename Reduction::template State<1>* partials) {
  using State = typename Reduction::template State<1>;
  __shared__ State states[kMaxThreads];
  const int64_t channel = blockIdx.x;
  const int64_t copies = cut.columns / cut.c;
  int64_t column = channel - Divide(cut.head, cut.c).remainder;
  if (column < 0) column += cut.c;
  State state = {};
  Cursor at(threadIdx.x, blockDim.x, copies);
  for (; at.high() < cut.splits; at.Advance()) {
    Reduction::Merge(
        state, partials[at.high() * cut.columns + column + at.low() * cut.c]);
  }
  AddLeftovers(cut, reduction, channel, state);
  states[threadIdx.x] = state;
  MergeRowsOfBlock<Reduction>(states, threadIdx.x, blockDim.x, 1);
  if (threadIdx.x == 0) reduction.Store(channel, states[0]);
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_REDUCTION_KERNELS_H_
