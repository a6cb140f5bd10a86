// Tests that segments tile the range that they are cut from, and the shape of
// the trees.
#include "collectives/algorithms/schedule.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int64_t kCounts = 60;
constexpr int kParts = 9;
constexpr int64_t kHuge = (int64_t{1} << 40) + 1;

TEST(SegmentTest, SegmentsTileTheDataEvenly) {
  for (int64_t count = 0; count <= kCounts; ++count) {
    for (int parts = 1; parts <= kParts; ++parts) {
      int64_t end = 0;
      int64_t longest = SegmentOf(count, parts, 0).count;
      for (int i = 0; i < parts; ++i) {
        const Segment segment = SegmentOf(count, parts, i);
        EXPECT_EQ(segment.begin, end);
        EXPECT_GE(segment.count, count / parts);
        EXPECT_LE(segment.count, (count + parts - 1) / parts);
        EXPECT_LE(segment.count, longest);
        longest = segment.count;
        end = segment.begin + segment.count;
      }
      EXPECT_EQ(end, count);
    }
  }
}

TEST(SegmentTest, SegmentsOfDataBeyondInt32) {
  EXPECT_EQ(SegmentOf(kHuge, 2, 0), (Segment{0, (int64_t{1} << 39) + 1}));
  EXPECT_EQ(SegmentOf(kHuge, 2, 1),
            (Segment{(int64_t{1} << 39) + 1, int64_t{1} << 39}));
}

TEST(SegmentTest, PiecesTileASegment) {
  for (const int64_t begin : {int64_t{0}, int64_t{7}, kHuge}) {
    for (int64_t count = 0; count <= kCounts; ++count) {
      for (int64_t piece = 1; piece <= kCounts + 1; ++piece) {
        const int64_t pieces = PieceCount(count, piece);
        int64_t end = begin;
        for (int64_t i = 0; i < pieces; ++i) {
          const Segment part = PieceOf({begin, count}, piece, i);
          EXPECT_EQ(part.begin, end);
          EXPECT_GT(part.count, 0);
          // Only the last piece may be short.
          EXPECT_TRUE(part.count == piece ||
                      (part.count < piece && i == pieces - 1));
          end = part.begin + part.count;
        }
        EXPECT_EQ(end, begin + count);
        EXPECT_EQ(PieceOf({begin, count}, piece, pieces), (Segment{end, 0}));
      }
    }
  }
}

TEST(SegmentTest, PiecesBeyondInt32) {
  EXPECT_EQ(PieceCount(kHuge, 2), (int64_t{1} << 39) + 1);
  EXPECT_EQ(PieceOf({0, kHuge}, 2, int64_t{1} << 39),
            (Segment{int64_t{1} << 40, 1}));
  // The end of the last piece does not overflow.
  EXPECT_EQ(PieceCount(INT64_MAX, 4), (int64_t{1} << 61));
  EXPECT_EQ(PieceOf({0, INT64_MAX}, 4, (int64_t{1} << 61) - 1),
            (Segment{INT64_MAX - 3, 3}));
}

// Returns a node as an expression, without the outermost brackets.
std::string Expression(int world_size, int begin, int end) {
  if (end - begin == 1) return absl::StrCat(begin);
  const int split = TreeSplit(world_size, begin, end);
  const auto side = [&](int first, int last) {
    const std::string side = Expression(world_size, first, last);
    return last - first == 1 ? side : absl::StrCat("(", side, ")");
  };
  return absl::StrCat(side(begin, split), "+", side(split, end));
}

std::string Expression(int world_size) {
  return Expression(world_size, 0, world_size);
}

TEST(OrderTest, TreesOfUpToNineRanks) {
  EXPECT_EQ(Expression(1), "0");
  EXPECT_EQ(Expression(2), "0+1");
  EXPECT_EQ(Expression(3), "(0+1)+2");
  EXPECT_EQ(Expression(4), "(0+1)+(2+3)");
  EXPECT_EQ(Expression(5), "((0+1)+2)+(3+4)");
  EXPECT_EQ(Expression(6), "((0+1)+(2+3))+(4+5)");
  EXPECT_EQ(Expression(7), "((0+1)+(2+3))+((4+5)+6)");
  EXPECT_EQ(Expression(8), "((0+1)+(2+3))+((4+5)+(6+7))");
  EXPECT_EQ(Expression(9), "(((0+1)+2)+(3+4))+((5+6)+(7+8))");
}

// Appends the leaves under a node in order. Returns the depth of the deepest
// leaf; -1 if a split leaves one side empty.
int Walk(int world_size, int begin, int end, std::vector<int>& leaves) {
  if (end - begin == 1) {
    leaves.push_back(begin);
    return 0;
  }
  const int split = TreeSplit(world_size, begin, end);
  if (split <= begin || split >= end) return -1;
  const int left = Walk(world_size, begin, split, leaves);
  const int right = Walk(world_size, split, end, leaves);
  return std::min(left, right) < 0 ? -1 : 1 + std::max(left, right);
}

TEST(OrderTest, EveryTreeHasEachRankOnceAndIsBalanced) {
  for (int world_size = 1; world_size <= 300; ++world_size) {
    std::vector<int> leaves;
    const int depth = Walk(world_size, 0, world_size, leaves);
    ASSERT_EQ(leaves.size(), static_cast<size_t>(world_size));
    for (int rank = 0; rank < world_size; ++rank) {
      ASSERT_EQ(leaves[rank], rank) << world_size;
    }
    ASSERT_GE(depth, 0) << world_size;
    ASSERT_GE(1 << depth, world_size);
    ASSERT_LT(1 << depth, 2 * world_size) << "deeper than it must be";
  }
}

TEST(OrderTest, GroupsHoldTheirRanks) {
  for (int world_size = 1; world_size <= 300; ++world_size) {
    const int groups = TreeGroups(world_size);
    ASSERT_LE(groups, world_size);
    ASSERT_GT(2 * groups, world_size);
    ASSERT_EQ(TreeGroupBegin(world_size, 0), 0);
    ASSERT_EQ(TreeGroupBegin(world_size, groups), world_size);
    for (int rank = 0; rank < world_size; ++rank) {
      const int group = TreeGroupOf(world_size, rank);
      ASSERT_LE(TreeGroupBegin(world_size, group), rank);
      ASSERT_GT(TreeGroupBegin(world_size, group + 1), rank);
    }
  }
}

TEST(RingScheduleTest, RankModuloIsNeverNegative) {
  EXPECT_EQ(RankModulo(-1, 3), 2);
  EXPECT_EQ(RankModulo(-7, 3), 2);
  EXPECT_EQ(RankModulo(3, 3), 0);
  EXPECT_EQ(RankModulo(0, 1), 0);
}

TEST(TreeScheduleTest, HalvesDataBeyondInt32) {
  const int64_t half = int64_t{1} << 39;
  const TreeRound r = TreeRoundOf(3, 0, {half, 2 * half + 1}, 256);
  EXPECT_EQ(r.other_group, 2);
  EXPECT_TRUE(r.other_is_earlier);
  EXPECT_EQ(r.mine, (Segment{2 * half + 1, half}));
  EXPECT_EQ(r.peers, (Segment{half, half + 1}));
}

}  // namespace
}  // namespace lockstep
