#include "collectives/algorithms/order.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// A node as an expression, without the brackets around all of it.
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

// Leaves under a node in order, and how deep the deepest is; -1 if a split
// leaves nothing on a side.
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
      ASSERT_EQ(leaves[static_cast<size_t>(rank)], rank) << world_size;
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

TEST(OrderTest, TreeOrderEndsAtItsSize) {
  EXPECT_TRUE(InTreeOrder(0));
  EXPECT_TRUE(InTreeOrder(kTreeOrderBytes));
  EXPECT_FALSE(InTreeOrder(kTreeOrderBytes + 1));
}

}  // namespace
}  // namespace lockstep
