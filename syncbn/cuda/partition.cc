#include "syncbn/cuda/partition.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <span>

#include "syncbn/batch_norm.h"

namespace lockstep {
namespace {

// The number of blocks that a reduction aims at: about eight for each of 132
// multiprocessors. This is twice what their registers hold, so that none is
// idle for long at the end. The number is a constant, since the device must not
// determine the order of additions.
constexpr int64_t kReductionBlocks = 1024;

// The columns of a block for channels last: a warp reads 512 contiguous bytes.
constexpr int64_t kMaxWidth = 32;

// The rounds of loads that a thread should have at least, before another block
// gets part of them. With fewer rounds, partial results become traffic too.
constexpr int64_t kMinRounds = 4;

// The rounds of loads, each behind the one before, in which the last blocks of
// a tile may merge. With more, a kernel of its own is estimated to be faster
// (syncbn/cuda/README.md).
constexpr int64_t kMaxMergeRounds = 4;

// With up to this many partial results per channel, one warp merges them.
constexpr int64_t kWarpPartials = 64;
constexpr int kWarp = 32;

constexpr int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Cuts `count` into at most `wanted` chunks of at least `least`.
void Split(int64_t count, int64_t wanted, int64_t least, int64_t& chunk,
           int64_t& splits) {
  splits = std::clamp<int64_t>(count / std::max<int64_t>(least, 1), 1, wanted);
  chunk = std::max<int64_t>(CeilDivide(count, splits), 1);
  splits = CeilDivide(count, chunk);
}

int MergingThreads(int64_t partials) {
  return partials <= kWarpPartials ? kWarp : kMaxThreads;
}

// Returns the rows of states in which a block merges `count` states of each of
// `columns` columns: a power of two, so that the tree over rows is the end of
// the tree over all states. Each thread has one state, if there are enough, and
// at most `unroll`.
int RowsOfStates(int64_t count, int columns, int unroll) {
  const auto most = std::bit_ceil(static_cast<uint64_t>(count));
  const auto least =
      std::bit_ceil(static_cast<uint64_t>(CeilDivide(count, unroll)));
  const auto of_threads =
      std::bit_floor(static_cast<uint64_t>(kMaxThreads / columns));
  return static_cast<int>(std::max(least, std::min(most, of_threads)));
}

// Lets the blocks of the reduction merge, unless that takes too many rounds: in
// one group for each tile if shared memory suffices and each thread then has
// one round for each row. Otherwise there are about as many groups as a group
// has blocks.
void MergeInBlocks(int tile, int unroll, PartialsPartition& cut) {
  if (cut.splits == 0) return;
  const int64_t leaves = std::min<int64_t>(cut.splits, cut.threads);
  const int64_t of_leaf = CeilDivide(cut.splits, cut.threads);
  const auto rows = [=](int64_t count) {
    return RowsOfStates(count, tile, unroll);
  };
  const auto rounds = [=](int64_t count) {
    return CeilDivide(int64_t{rows(count)} * tile, kMaxThreads);
  };
  int64_t groups = 1;
  if (rounds(leaves) * of_leaf > kMaxMergeRounds) {
    while (groups * groups < cut.splits) groups *= 2;
    const int64_t of_groups = rounds(CeilDivide(leaves, groups)) * of_leaf;
    if (of_groups + rounds(groups) > kMaxMergeRounds) return;
  }
  cut.tile = tile;
  cut.groups = static_cast<int>(groups);
  cut.leaf_rows = rows(CeilDivide(leaves, groups));
  cut.group_rows = rows(groups);
}

}  // namespace

ActivationShape CanonicalShape(const ActivationShape& shape) {
  if (shape.n == 0) return shape;
  if (shape.c == 1) return {1, 1, shape.n * shape.hw, Layout::kNchw};
  if (shape.hw == 1) return {shape.n, shape.c, 1, Layout::kNhwc};
  return shape;
}

int64_t ElementsPastBoundary(std::span<const void* const> tensors,
                             int64_t element_bytes, int vector_size) {
  int64_t past = -1;
  for (const void* const tensor : tensors) {
    if (tensor == nullptr) continue;
    const auto address = reinterpret_cast<uintptr_t>(tensor);
    const int64_t own =
        static_cast<int64_t>(address) / element_bytes % vector_size;
    if (past >= 0 && own != past) return -1;
    past = own;
  }
  return std::max<int64_t>(past, 0);
}

FlatPartition CutFlat(const ActivationShape& shape, int64_t past,
                      int vector_size, int64_t max_blocks) {
  FlatPartition cut;
  cut.size = shape.size();
  cut.c = shape.c;
  cut.hw = shape.hw;
  cut.head = std::min(cut.size, (vector_size - past) % vector_size);
  cut.vectors = (cut.size - cut.head) / vector_size;
  const int64_t threads = std::clamp<int64_t>(
      cut.vectors, 1, std::max<int64_t>(max_blocks, 1) * kMaxThreads);
  const int64_t period = shape.layout == Layout::kNhwc
                             ? shape.c / std::gcd<int64_t>(shape.c, vector_size)
                             : 1;
  cut.step = std::max<int64_t>(threads / period, 1) * period;
  if (cut.size > 0) {
    cut.stride = -cut.step * vector_size;
    // A step back is a step forward to the same pixel of another sample.
    const int64_t sample = shape.c * shape.hw;
    cut.pixel_step_back = PixelStepOf(sample - cut.step * vector_size % sample,
                                      shape.c, shape.hw);
  }
  cut.whole = cut.head == 0 && shape.hw % vector_size == 0;
  const int64_t busy =
      std::max(std::min(cut.step, cut.vectors),
               std::min<int64_t>(cut.singles(vector_size), kMaxThreads));
  cut.blocks = CeilDivide(busy, kMaxThreads);
  return cut;
}

PlanesPartition CutPlanes(const ActivationShape& shape, int64_t past,
                          int vector_size, int unroll) {
  PlanesPartition cut;
  cut.size = shape.size();
  cut.c = shape.c;
  cut.hw = shape.hw;
  cut.past = past;
  cut.whole = past == 0 && shape.hw % vector_size == 0;
  cut.head = std::min(cut.size, (vector_size - past) % vector_size);
  cut.tail = cut.head + (cut.size - cut.head) / vector_size * vector_size;
  cut.windows = cut.whole ? shape.hw / vector_size
                          : (shape.hw + 2 * vector_size - 2) / vector_size;
  cut.items = shape.n * cut.windows;
  // Takes the fewest warps whose threads have at most `unroll` items each, up
  // to kMaxThreads.
  cut.threads = static_cast<int>(std::clamp<uint64_t>(
      std::bit_ceil(static_cast<uint64_t>(CeilDivide(cut.items, unroll))),
      kWarp, kMaxThreads));
  Split(cut.items, CeilDivide(kReductionBlocks, shape.c),
        int64_t{cut.threads} * unroll * kMinRounds, cut.chunk, cut.splits);
  cut.sample = shape.c * shape.hw;
  if (cut.windows > 0) {
    cut.step_plane = cut.threads / cut.windows * cut.sample;
    cut.step_windows = cut.threads % cut.windows;
  }
  return cut;
}

RowsPartition CutRows(const ActivationShape& shape, int64_t past,
                      int vector_size, int unroll) {
  RowsPartition cut;
  cut.size = shape.size();
  cut.c = shape.c;
  cut.head = std::min(cut.size, (vector_size - past) % vector_size);
  cut.period = shape.c / std::gcd<int64_t>(shape.c, vector_size);
  cut.rows = (cut.size - cut.head) / (cut.period * vector_size);
  cut.tail = cut.head + cut.rows * cut.period * vector_size;
  // Tiles have equal widths, so that the last one is not mostly idle.
  cut.width = static_cast<int>(
      CeilDivide(cut.period, CeilDivide(cut.period, kMaxWidth)));
  cut.tiles = CeilDivide(cut.period, cut.width);
  cut.height = static_cast<int>(std::clamp<int64_t>(
      CeilDivide(cut.rows, unroll), 1, kMaxThreads / cut.width));
  Split(cut.rows, CeilDivide(kReductionBlocks, cut.tiles),
        int64_t{cut.height} * unroll * kMinRounds, cut.chunk, cut.splits);
  return cut;
}

PartialsPartition PartialsOf(const PlanesPartition& planes) {
  PartialsPartition cut = {.c = planes.c,
                           .columns = planes.c,
                           .splits = planes.splits,
                           .head = 0,
                           .tail = planes.size,
                           .size = planes.size,
                           .threads = MergingThreads(planes.splits)};
  // A thread has up to four results, so one group suffices.
  if (cut.splits > 0) {
    cut.groups = 1;
    cut.leaf_rows =
        RowsOfStates(std::min<int64_t>(cut.splits, cut.threads), /*columns=*/1,
                     /*unroll=*/1);
  }
  return cut;
}

PartialsPartition PartialsOf(const RowsPartition& rows, int vector_size,
                             int merge_unroll) {
  const int64_t columns = rows.period * vector_size;
  PartialsPartition cut = {
      .c = rows.c,
      .columns = columns,
      .splits = rows.splits,
      .head = rows.head,
      .tail = rows.tail,
      .size = rows.size,
      .threads = MergingThreads(rows.splits * (columns / rows.c))};
  if (columns == rows.c) {
    MergeInBlocks(rows.width * vector_size, merge_unroll, cut);
  }
  return cut;
}

}  // namespace lockstep
