// Kernels that reduce activations to a few numbers of each channel. Included by
// .cu files alone.
//
// Blocks reduce parts of a channel, or of some channels, to partial results in
// scratch memory; a last kernel merges those of each channel. Threads add up
// their values in the order of their addresses, blocks merge their threads in a
// tree, and the last kernel merges blocks so: always in the same order, without
// atomics, so that a partition always gives the same bits.
//
// A Reduction, copied to the device, has
//   using Element;     What activations are of.
//   using Item;        What it makes of one element.
//   template State<N>; The results of N channels, of trivial type. A State of
//                      zeros is that of no elements.
//   kPlanesUnroll, kRowsUnroll;  Vectors of each tensor that a thread loads at
//                                once, channels first and last.
//   Center(channel);   A number that Load subtracts.
//   Load<N>(place, center, items);  Items of elements [place, place + N).
//   AddTile(state, k, items, valid, n);  Adds the n valid ones of items to
//                                        channel k of the state.
//   AddCount(state, n);   Then, once for all k.
//   Merge(a, b);          a becomes that of both, a first.
//   Part(state, k);       State<1> of channel k.
//   Store(channel, state);  Writes the result.
#ifndef LOCKSTEP_SYNCBN_CUDA_REDUCTION_KERNELS_H_
#define LOCKSTEP_SYNCBN_CUDA_REDUCTION_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "syncbn/cuda/partition.h"

namespace lockstep {

// Merges the states of a block's threads, which stand in `states` as `height`
// rows of `width`, into the first row, in a tree over rows. Every thread of the
// block calls it, with the row that its state is in.
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

// The elements of one channel in an aligned vector of a channels-first tensor.
struct Window {
  int64_t place;  // Of the vector's first element; may lie before the tensor.
  int begin;      // Elements [begin, end) are the channel's.
  int end;
};

template <int kSize>
__device__ inline Window WindowAt(const PlanesPartition& cut, int64_t channel,
                                  int64_t sample, int64_t window) {
  const int64_t plane = (sample * cut.c + channel) * cut.hw;
  const int64_t first = (plane + cut.past) / kSize;  // A shift.
  const int64_t place = (first + window) * kSize - cut.past;
  const int64_t before = plane - place;
  const int64_t after = before + cut.hw;
  return {place, before > 0 ? static_cast<int>(before) : 0,
          after < kSize ? static_cast<int>(after) : kSize};
}

// Loads the whole vector, neighbours and all, if it lies in the tensor.
template <int kSize, typename Reduction>
__device__ inline void LoadWindow(const Reduction& reduction,
                                  const PlanesPartition& cut,
                                  const Window& window, float center,
                                  typename Reduction::Item* items) {
  if (window.begin >= window.end) return;
  float centers[kSize];
#pragma unroll
  for (int k = 0; k < kSize; ++k) centers[k] = center;
  if (window.place >= 0 && window.place + kSize <= cut.size) {
    reduction.template Load<kSize>(window.place, centers, items);
    return;
  }
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    if (k >= window.begin && k < window.end) {
      reduction.template Load<1>(window.place + k, centers, items + k);
    }
  }
}

// Channels first. Block (channel, split).
template <int kSize, typename Reduction>
__global__ void __launch_bounds__(kMaxThreads)
    PlanesKernel(PlanesPartition cut, Reduction reduction,
                 typename Reduction::template State<1>* partials) {
  constexpr int kUnroll = Reduction::kPlanesUnroll;
  using State = typename Reduction::template State<1>;
  __shared__ State states[kMaxThreads];
  const int64_t channel = blockIdx.x;
  const float center = reduction.Center(channel);
  const int64_t begin = int64_t{blockIdx.y} * cut.chunk;
  const int64_t end =
      begin + cut.chunk < cut.items ? begin + cut.chunk : cut.items;
  State state = {};
  Cursor at(begin + threadIdx.x, blockDim.x, cut.windows);
  for (int64_t i = begin + threadIdx.x; i < end;
       i += int64_t{kUnroll} * blockDim.x) {
    typename Reduction::Item items[kUnroll * kSize] = {};
    bool valid[kUnroll * kSize];
    int n = 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      Window window = WindowAt<kSize>(cut, channel, at.high(), at.low());
      at.Advance();
      if (i + int64_t{blockDim.x} * u >= end) window.end = 0;
      LoadWindow<kSize>(reduction, cut, window, center, items + u * kSize);
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        valid[u * kSize + k] = k >= window.begin && k < window.end;
        n += valid[u * kSize + k];
      }
    }
    Reduction::AddTile(state, 0, items, valid, n);
    Reduction::AddCount(state, n);
  }
  states[threadIdx.x] = state;
  MergeRowsOfBlock<Reduction>(states, threadIdx.x, blockDim.x, 1);
  if (threadIdx.x == 0) partials[blockIdx.y * cut.c + channel] = states[0];
}

// Adds rows row, row + height, ..., kUnroll of them at once, to the state.
template <int kSize, typename Reduction>
__device__ inline void AddRows(
    const RowsPartition& cut, const Reduction& reduction, int64_t vector,
    int64_t row, int64_t end, const float (&centers)[kSize],
    typename Reduction::template State<kSize>& state) {
  constexpr int kUnroll = Reduction::kRowsUnroll;
  for (; row < end; row += int64_t{kUnroll} * cut.height) {
    typename Reduction::Item items[kSize][kUnroll] = {};
    bool valid[kUnroll];
    int n = 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t own = row + int64_t{cut.height} * u;
      valid[u] = own < end;
      if (!valid[u]) continue;
      ++n;
      typename Reduction::Item loaded[kSize];
      reduction.template Load<kSize>(
          cut.head + (own * cut.period + vector) * kSize, centers, loaded);
#pragma unroll
      for (int k = 0; k < kSize; ++k) items[k][u] = loaded[k];
    }
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      Reduction::AddTile(state, k, items[k], valid, n);
    }
    Reduction::AddCount(state, n);
  }
}

// Channels last. Block (tile of columns, split).
template <int kSize, typename Reduction>
__global__ void __launch_bounds__(kMaxThreads)
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
    AddRows<kSize>(cut, reduction, vector, begin + row, end, centers, state);
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

// Adds the elements of a channel that no block had.
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
  const float center[1] = {reduction.Center(channel)};
  for (int64_t i = threadIdx.x; i < in_head + in_tail; i += blockDim.x) {
    const int64_t place =
        i < in_head ? channel + i * cut.c : first + (i - in_head) * cut.c;
    typename Reduction::Item item[1];
    const bool valid[1] = {true};
    reduction.template Load<1>(place, center, item);
    Reduction::AddTile(state, 0, item, valid, 1);
    Reduction::AddCount(state, 1);
  }
}

// Merges the partial results of a channel and stores the result. Block
// (channel).
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
