// Tests that every element is assigned exactly once, even if 32 bits do not
// suffice.
#include "syncbn/cuda/partition.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"

namespace lockstep {
namespace {

TEST(DivideTest, HasQuotientAndRemainder) {
  constexpr int64_t kLarge = int64_t{1} << 31;
  for (const int64_t a : {int64_t{0}, int64_t{1}, int64_t{7}, kLarge - 1,
                          kLarge, kLarge + 1, 5 * kLarge + 3}) {
    for (const int64_t b :
         {int64_t{1}, int64_t{2}, int64_t{7}, kLarge - 1, kLarge, 3 * kLarge}) {
      EXPECT_EQ(Divide(a, b).quotient, a / b);
      EXPECT_EQ(Divide(a, b).remainder, a % b);
    }
  }
}

TEST(CursorTest, StepsAsDivisionsDo) {
  constexpr int64_t kLarge = int64_t{1} << 33;
  for (const int64_t start : {int64_t{0}, int64_t{5}, kLarge + 11}) {
    for (const int64_t step : {int64_t{1}, int64_t{6}, int64_t{97}, kLarge}) {
      for (const int64_t radix : {int64_t{1}, int64_t{7}, int64_t{97}}) {
        Cursor cursor(start, step, radix);
        PixelCursor pixel(start, PixelStepOf(step, 5, radix), 5, radix);
        for (int64_t at = start, i = 0; i < 40; at += step, ++i) {
          ASSERT_EQ(cursor.high(), at / radix);
          ASSERT_EQ(cursor.low(), at % radix);
          ASSERT_EQ(pixel.offset(), at % radix);
          ASSERT_EQ(pixel.channel(), at / radix % 5);
          cursor.Advance();
          pixel.Advance();
        }
      }
    }
  }
}

TEST(CountOwnTest, CountsWhatLiesAStepApart) {
  for (const int64_t first : {0, 3, 10, 11}) {
    for (const int64_t step : {1, 3, 256}) {
      int own = 0;
      for (int64_t i = first; i < 10; i += step) ++own;
      EXPECT_EQ(CountSteps(first, 10, step), own);
    }
  }
}

TEST(ElementsPastBoundaryTest, FindsWhatTensorsShare) {
  alignas(16) static const float kMemory[16] = {};
  const void* const alike[] = {kMemory + 1, nullptr, kMemory + 5};
  EXPECT_EQ(ElementsPastBoundary(alike, 4, 4), 1);
  const void* const apart[] = {kMemory, kMemory + 1};
  EXPECT_EQ(ElementsPastBoundary(apart, 4, 4), -1);
  const void* const none[] = {nullptr};
  EXPECT_EQ(ElementsPastBoundary(none, 4, 4), 0);
}

std::vector<ActivationShape> Shapes() {
  std::vector<ActivationShape> shapes;
  for (const int64_t n : {1, 2, 5}) {
    for (const int64_t c : {1, 2, 3, 63, 64, 65, 300}) {
      for (const int64_t hw : {1, 4, 49, 1000}) {
        shapes.push_back({n, c, hw, Layout::kNchw});
        shapes.push_back({n, c, hw, Layout::kNhwc});
      }
    }
  }
  return shapes;
}

TEST(CutFlatTest, ThreadsHaveEveryVectorOnceAndTheirOwnChannels) {
  for (const ActivationShape& shape : Shapes()) {
    for (const int64_t past : {0, 3}) {
      const FlatPartition cut = CutFlat(shape, past, 4, 1);
      std::vector<int> seen(static_cast<size_t>(cut.vectors));
      for (int64_t first = 0; first < cut.blocks * kMaxThreads; ++first) {
        if (first >= cut.step) continue;
        for (int64_t i = first; i < cut.vectors; i += cut.step) {
          ++seen[static_cast<size_t>(i)];
        }
      }
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
      EXPECT_GE(cut.blocks, 1);
      EXPECT_LT(cut.singles(4), 8);
      if (shape.layout == Layout::kNhwc) {
        EXPECT_EQ(cut.step * 4 % shape.c, 0);
      }
    }
  }
}

// Threads begin with the vectors at the end, and a pixel follows them back.
TEST(CutFlatTest, ThreadsWalkFromTheEnd) {
  for (const ActivationShape& shape : Shapes()) {
    const FlatPartition cut = CutFlat(shape, 3, 4, 1);
    std::vector<int> begun(static_cast<size_t>(cut.vectors));
    for (int64_t first = 0; first < std::min(cut.step, cut.vectors); ++first) {
      const int64_t last = cut.last(first);
      ++begun[static_cast<size_t>(last)];
      PixelCursor pixel(cut.head + last * 4, cut.pixel_step_back, cut.c,
                        cut.hw);
      for (int64_t i = last; i >= 0; i -= cut.step, pixel.Advance()) {
        const int64_t place = cut.head + i * 4;
        ASSERT_EQ(pixel.offset(), place % cut.hw);
        ASSERT_EQ(pixel.channel(), place / cut.hw % cut.c);
      }
    }
    for (int64_t i = 0; i < cut.vectors; ++i) {
      ASSERT_EQ(begun[static_cast<size_t>(i)], i >= cut.vectors - cut.step);
    }
  }
}

TEST(CutRowsTest, CoversAllButLessThanARowAndAVector) {
  for (const ActivationShape& shape : Shapes()) {
    if (shape.layout != Layout::kNhwc) continue;
    const RowsPartition cut = CutRows(shape, 1, 4, 4);
    const int64_t row = cut.period * 4;
    EXPECT_EQ(row % shape.c, 0);
    EXPECT_LT(cut.head, 4);
    EXPECT_EQ(cut.tail, cut.head + cut.rows * row);
    EXPECT_LT(cut.size - cut.tail, row);
    EXPECT_GE(cut.tiles * cut.width, cut.period);
    EXPECT_LT((cut.tiles - 1) * cut.width, cut.period);
    EXPECT_LE(cut.width * cut.height, kMaxThreads);
    EXPECT_GE(cut.splits * cut.chunk, cut.rows);
    EXPECT_EQ(PartialsOf(cut, 4, 4).columns % shape.c, 0);
  }
}

// Returns the shapes above, and some whose channels have many partial results.
std::vector<ActivationShape> ShapesWithManyBlocks() {
  std::vector<ActivationShape> shapes = Shapes();
  for (const int64_t c : {1, 2, 8, 24, 64, 100, 256, 264, 1000, 2048, 5000}) {
    for (const int64_t hw : {49, 3136, 300000, 10000000}) {
      shapes.push_back({3, c, hw, Layout::kNchw});
      shapes.push_back({3, c, hw, Layout::kNhwc});
    }
  }
  return shapes;
}

// How blocks merge, and what limits them.
struct BlockMerge {
  PartialsPartition cut;
  int64_t tiles;
  int unroll;           // The states of a column that a thread has at once.
  int64_t most_states;  // The states that shared memory holds.
};

// unroll: the partial results that a thread loads at once.
BlockMerge MergeOf(const ActivationShape& shape, int vector_size, int loads,
                   int unroll) {
  if (shape.layout == Layout::kNchw) {
    const PlanesPartition planes = CutPlanes(shape, 0, vector_size, loads);
    // The blocks have a thread for each state.
    EXPECT_TRUE(planes.splits <= 1 || planes.threads == kMaxThreads);
    return {PartialsOf(planes), shape.c, 1, kMaxThreads};
  }
  const RowsPartition rows = CutRows(shape, 0, vector_size, loads);
  return {PartialsOf(rows, vector_size, unroll), rows.tiles, unroll,
          kMergedStates};
}

// Checks that `rows` rows of a tile's columns in shared memory hold `count`
// states of each column.
void ExpectHolds(const BlockMerge& merge, int rows, int64_t count) {
  EXPECT_EQ(rows & (rows - 1), 0);
  EXPECT_GE(int64_t{rows} * merge.unroll, count);
  EXPECT_LE(int64_t{rows} * merge.cut.tile, merge.most_states);
}

void ExpectHasMemory(const BlockMerge& merge) {
  const PartialsPartition& cut = merge.cut;
  EXPECT_EQ(cut.columns, cut.c);
  EXPECT_EQ(cut.groups & (cut.groups - 1), 0);
  EXPECT_LE(cut.groups, std::min<int64_t>(cut.splits, cut.threads));
  const int64_t leaves = std::min<int64_t>(cut.splits, cut.threads);
  ExpectHolds(merge, cut.leaf_rows, (leaves + cut.groups - 1) / cut.groups);
  ExpectHolds(merge, cut.group_rows, cut.groups);
  // A single block takes no ticket.
  EXPECT_TRUE(cut.splits == 1 || merge.tiles * (cut.groups + 1) <= kTickets);
}

TEST(PartialsOfTest, BlocksHaveMemoryToMerge) {
  int merges_in_groups = 0;
  for (const ActivationShape& shape : ShapesWithManyBlocks()) {
    for (const int vector_size : {1, 4, 8}) {
      for (const int loads : {2, 4}) {
        const BlockMerge merge =
            MergeOf(shape, vector_size, loads, /*unroll=*/16 / loads);
        if (shape.c % vector_size != 0 && shape.layout == Layout::kNhwc) {
          EXPECT_EQ(merge.cut.groups, 0);
        }
        if (merge.cut.groups > 0) ExpectHasMemory(merge);
        if (merge.cut.groups > 1) ++merges_in_groups;
      }
    }
  }
  EXPECT_GT(merges_in_groups, 10);
}

// Channels first, blocks always merge. With channels last a kernel of its own
// merges if tiles are wide and have many partial results.
TEST(PartialsOfTest, BlocksMergeUnlessThatIsSlow) {
  const auto merges = [](const ActivationShape& shape) {
    return MergeOf(shape, 8, 4, 4).cut.groups > 0;
  };
  EXPECT_TRUE(merges({256, 3, 50176, Layout::kNchw}));
  EXPECT_TRUE(merges({1, 1, 1 << 24, Layout::kNchw}));
  EXPECT_TRUE(merges({32, 64, 3136, Layout::kNhwc}));
  EXPECT_TRUE(merges({32, 128, 784, Layout::kNhwc}));
  EXPECT_TRUE(merges({32, 1024, 196, Layout::kNhwc}));
  EXPECT_TRUE(merges({32, 2048, 49, Layout::kNhwc}));
  EXPECT_FALSE(merges({32, 512, 784, Layout::kNhwc}));
  EXPECT_FALSE(merges({32, 256, 3136, Layout::kNhwc}));
}

// If blocks merge, leaf 0 has a channel's only element outside of all vectors.
TEST(PartialsOfTest, AChannelHasOneElementOutsideOfVectors) {
  for (const ActivationShape& shape : ShapesWithManyBlocks()) {
    if (shape.layout != Layout::kNhwc) continue;
    const PartialsPartition cut = PartialsOf(CutRows(shape, 3, 4, 4), 4, 4);
    if (cut.groups == 0) continue;
    std::vector<int> outside(static_cast<size_t>(shape.c));
    for (int64_t i = 0; i < cut.head; ++i)
      ++outside[static_cast<size_t>(i % shape.c)];
    for (int64_t i = cut.tail; i < cut.size; ++i)
      ++outside[static_cast<size_t>(i % shape.c)];
    EXPECT_EQ(outside, std::vector<int>(outside.size(), 1));
  }
}

TEST(CutPlanesTest, ChunksCoverEveryWindow) {
  for (const ActivationShape& shape : Shapes()) {
    for (const int64_t past : {0, 3}) {
      const PlanesPartition cut = CutPlanes(shape, past, 4, 4);
      // The plane may have any alignment.
      EXPECT_GE(cut.windows * 4, shape.hw);
      if (past != 0 || shape.hw % 4 != 0) {
        EXPECT_GE(cut.windows * 4, shape.hw + 3 - (shape.hw + 2) % 4);
      }
      EXPECT_GE(cut.splits * cut.chunk, cut.items);
      EXPECT_LT((cut.splits - 1) * cut.chunk, cut.items);
      EXPECT_LE(cut.threads, kMaxThreads);
    }
  }
}

// Counts how often the threads of all blocks have each element of a tensor.
// Checks that each element belongs to their channel.
template <bool kWhole>
void CountElements(const PlanesPartition& cut, std::vector<int>& seen) {
  constexpr int kSize = 4;
  for (int64_t channel = 0; channel < cut.c; ++channel) {
    for (int64_t split = 0; split < cut.splits; ++split) {
      const int64_t begin = split * cut.chunk;
      const int64_t end = std::min(begin + cut.chunk, cut.items);
      for (int64_t thread = 0; thread < cut.threads; ++thread) {
        if (begin + thread >= end) continue;
        WindowCursor<kSize, kWhole> at(cut, channel, begin + thread);
        for (int i = CountSteps(begin + thread, end, cut.threads); i > 0; --i) {
          for (int k = 0; k < kSize; ++k) {
            if ((at.valid(cut) >> k & 1) == 0) continue;
            const int64_t place = at.place(cut) + k;
            ASSERT_EQ((at.place(cut) + cut.past) % kSize, 0);
            ASSERT_EQ(place / cut.hw % cut.c, channel);
            ++seen[static_cast<size_t>(place)];
          }
          at.Advance(cut);
        }
      }
    }
  }
}

TEST(WindowCursorTest, HasEveryElementBetweenTheEndsOnce) {
  for (const ActivationShape& shape : Shapes()) {
    for (const int64_t past : {0, 1, 3}) {
      const PlanesPartition cut = CutPlanes(shape, past, 4, 4);
      EXPECT_EQ(cut.whole, past == 0 && shape.hw % 4 == 0);
      EXPECT_LT(cut.head, 4);
      EXPECT_LT(cut.size - cut.tail, 4);
      std::vector<int> seen(static_cast<size_t>(cut.size));
      cut.whole ? CountElements<true>(cut, seen)
                : CountElements<false>(cut, seen);
      for (int64_t i = 0; i < cut.size; ++i) {
        const bool in_vectors = i >= cut.head && i < cut.tail;
        ASSERT_EQ(seen[static_cast<size_t>(i)], in_vectors ? 1 : 0) << i;
      }
    }
  }
}

// Three channels of a large image keep a thousand blocks busy, and so does one.
TEST(CutPlanesTest, FillsTheGpuWithFewChannels) {
  EXPECT_GE(CutPlanes({64, 3, 512 * 512}, 0, 4, 4).splits * 3, 1000);
  EXPECT_GE(CutPlanes({1, 1, 1 << 24}, 0, 4, 4).splits, 1000);
  const RowsPartition rows =
      CutRows({64, 3, 512 * 512, Layout::kNhwc}, 0, 4, 4);
  EXPECT_GE(rows.splits * rows.tiles, 1000);
}

// The tensor has more than 2^32 elements.
TEST(PartitionTest, CountsPast32Bits) {
  const ActivationShape shape = {70000, 64, 1025, Layout::kNchw};
  const PlanesPartition planes = CutPlanes(shape, 3, 8, 4);
  EXPECT_EQ(planes.size, int64_t{70000} * 64 * 1025);
  EXPECT_GE(planes.splits * planes.chunk, 70000 * planes.windows);
  const FlatPartition flat = CutFlat(shape, 3, 8, 1056);
  EXPECT_EQ(flat.head + flat.vectors * 8 + (flat.size - flat.head) % 8,
            flat.size);
  ActivationShape last = shape;
  last.layout = Layout::kNhwc;
  const RowsPartition rows = CutRows(last, 3, 8, 4);
  EXPECT_EQ(rows.tail, rows.head + rows.rows * 64);
  EXPECT_GE(rows.splits * rows.chunk, rows.rows);
}

TEST(CanonicalTest, NamesTheSameMemory) {
  EXPECT_EQ(CanonicalShape({3, 1, 5, Layout::kNhwc}),
            (ActivationShape{1, 1, 15, Layout::kNchw}));
  EXPECT_EQ(CanonicalShape({3, 4, 1, Layout::kNchw}),
            (ActivationShape{3, 4, 1, Layout::kNhwc}));
  const ActivationShape shape = {3, 4, 5, Layout::kNhwc};
  EXPECT_EQ(CanonicalShape(shape), shape);
}

}  // namespace
}  // namespace lockstep
