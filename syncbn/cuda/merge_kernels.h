// Merges the partial results that blocks of a reduction leave in scratch
// memory. Only .cu files include this header. reduction_kernels.h describes a
// Reduction; PartialsPartition describes the tree.
//
// Whichever block merges, it merges in the order of the tree, so that a
// partition always gives the same bits.
#ifndef LOCKSTEP_SYNCBN_CUDA_MERGE_KERNELS_H_
#define LOCKSTEP_SYNCBN_CUDA_MERGE_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "syncbn/cuda/partition.h"

namespace lockstep {

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

// Merges the rows of `states` [height, width] into the first row, in a tree.
// Every thread of the block must call this function. Thread i writes the states
// i, i + blockDim.x, and so on.
template <typename Reduction, typename State>
__device__ inline void MergeRows(State* states, int height, int width) {
  const int size = height * width;
  int half = 1;
  while (half < height) half *= 2;
  for (half /= 2; half > 0; half /= 2) {
    const int distance = half * width;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x);
         i < distance && i + distance < size;
         i += static_cast<int>(blockDim.x)) {
      Reduction::Merge(states[i], states[i + distance]);
    }
  }
}

// The scratch memory of a reduction. Partial results are [splits, columns], the
// results of groups [groups, columns]. Tickets are 0 between reductions.
template <typename Partial>
struct Scratch {
  Partial* partials;
  Partial* group_results;
  unsigned* tickets;
};

template <typename Reduction>
using ScratchOf = Scratch<typename Reduction::template State<1>>;

// Returns whether this block is the last of `blocks` blocks to arrive with this
// ticket. Then it sees what all of them wrote before they arrived, and the
// ticket is 0 again. Every thread of the block must call this function. It
// also synchronises the block.
__device__ inline bool IsLastBlock(unsigned* ticket, int blocks) {
  __shared__ bool is_last;
  __syncthreads();  // All threads have written, and have read is_last.
  if (threadIdx.x == 0) {
    is_last = true;
    if (blocks > 1) {
      const auto last = static_cast<unsigned>(blocks - 1);
      __threadfence();  // Shows this block's writes before its arrival.
      is_last = atomicInc(ticket, last) == last;
      __threadfence();  // No later read sees memory as it was before.
    }
  }
  __syncthreads();
  return is_last;
}

// Returns the channel of a column, if each channel has one.
__device__ inline int64_t ChannelOfColumn(const PartialsPartition& cut,
                                          int64_t column) {
  const int64_t channel = cut.head + column;
  return channel >= cut.c ? channel - cut.c : channel;
}

// Adds the elements of a channel that are in no partial result, as one of
// `threads` threads.
template <typename Reduction>
__device__ inline void AddLeftovers(
    const PartialsPartition& cut, const Reduction& reduction, int64_t channel,
    int thread, int threads, typename Reduction::template State<1>& state) {
  const int64_t in_head =
      cut.head > channel ? (cut.head - 1 - channel) / cut.c + 1 : 0;
  const int64_t past = Divide(cut.tail, cut.c).remainder;
  const int64_t first =
      cut.tail + (channel >= past ? channel - past : channel + cut.c - past);
  const int64_t in_tail =
      cut.size > first ? (cut.size - 1 - first) / cut.c + 1 : 0;
  for (int64_t i = thread; i < in_head + in_tail; i += threads) {
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
  AddLeftovers(cut, reduction, channel, threadIdx.x, blockDim.x, state);
  states[threadIdx.x] = state;
  MergeRows<Reduction>(states, blockDim.x, 1);
  if (threadIdx.x == 0) reduction.Store(channel, states[0]);
}

// States of each column, [count, columns], that blocks merge in groups: state i
// is in leaf i % leaves, and leaf t in group t % groups.
template <typename State>
struct MergeInput {
  const State* states;
  int count;
  int leaves;
  int groups;
  int rows;  // The rows of shared memory that a group's leaves take.
};

// Merges the leaves of a group that belong to one row of shared memory.
template <int kUnroll, typename Reduction, typename State>
__device__ inline State MergeLeaves(const PartialsPartition& cut,
                                    const Reduction& reduction,
                                    const MergeInput<State>& in, int group,
                                    int row, unsigned column,
                                    bool has_leftovers) {
  State leaves[kUnroll] = {};
  const int first = group + in.groups * row;
  const int step = in.groups * in.rows;
  // If there are several partial results for a column, there are fewer than
  // 2^32.
  const auto columns = static_cast<unsigned>(cut.columns);
#pragma unroll 1
  for (int begin = 0; begin < in.count; begin += in.leaves) {
    State states[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int leaf = first + u * step;
      if (leaf < in.leaves && begin + leaf < in.count) {
        states[u] =
            in.states[static_cast<unsigned>(begin + leaf) * columns + column];
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) Reduction::Merge(leaves[u], states[u]);
  }
  // A channel of one column has at most one element that is in no vector.
  if (has_leftovers && first == 0) {
    AddLeftovers(cut, reduction, ChannelOfColumn(cut, column), 0, cut.threads,
                 leaves[0]);
  }
#pragma unroll
  for (int half = kUnroll / 2; half > 0; half /= 2) {
#pragma unroll
    for (int u = 0; u < half; ++u) {
      Reduction::Merge(leaves[u], leaves[u + half]);
    }
  }
  return leaves[0];
}

// Lets the last blocks merge. Every thread of every block must call this
// function, after the block has stored its partial results. states: shared
// memory.
template <int kUnroll, typename Reduction, typename State>
__device__ inline void MergeAsLastBlock(const PartialsPartition& cut,
                                        const Reduction& reduction,
                                        const Scratch<State>& scratch,
                                        State* states) {
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const auto of_tiles = static_cast<unsigned>(cut.columns);
  const unsigned first = blockIdx.x * static_cast<unsigned>(cut.tile);
  const int columns = static_cast<int>(of_tiles - first) < cut.tile
                          ? static_cast<int>(of_tiles - first)
                          : cut.tile;
  unsigned* tickets = scratch.tickets + blockIdx.x * (cut.groups + 1);
  MergeInput<State> in = {scratch.partials, static_cast<int>(gridDim.y),
                          cut.threads, cut.groups, cut.leaf_rows};
  int member = static_cast<int>(blockIdx.y);
  bool has_leftovers = cut.head > 0;
#pragma unroll 1
  for (;;) {
    const int group = member % in.groups;
    const int members = (in.count - group + in.groups - 1) / in.groups;
    if (!IsLastBlock(tickets + group, members)) return;
    for (int i = thread; i < in.rows * columns; i += threads) {
      const int row = i / columns;
      states[i] =
          MergeLeaves<kUnroll>(cut, reduction, in, group, row,
                               first + i - row * columns, has_leftovers);
    }
    MergeRows<Reduction>(states, in.rows, columns);
    if (in.groups == 1) break;
    State* const results = scratch.group_results + group * of_tiles + first;
    for (int i = thread; i < columns; i += threads) results[i] = states[i];
    tickets += in.groups;
    member = group;
    has_leftovers = false;
    in = {scratch.group_results, in.groups, in.groups, 1, cut.group_rows};
  }
  for (int i = thread; i < columns; i += threads) {
    reduction.Store(ChannelOfColumn(cut, first + i), states[i]);
  }
}

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CUDA_MERGE_KERNELS_H_
