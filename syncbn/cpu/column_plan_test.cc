#include "syncbn/cpu/column_plan.h"

#include <cstdint>

#include "gtest/gtest.h"
#include "syncbn/activations.h"

namespace lockstep {
namespace {

TEST(ColumnPlanTest, HasEachValueOnce) {
  for (Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    for (int64_t n : {0, 1, 5, 270}) {
      for (int64_t c : {1, 2, 3, 16, 63, 64, 65, 130, 2048, 4095, 5000}) {
        for (int64_t hw : {1, 2, 49, 784, 9001}) {
          const ActivationShape shape = {
              .n = n, .c = c, .hw = hw, .layout = layout};
          const ColumnPlan plan = MakeColumnPlan(shape);
          EXPECT_EQ(plan.series * plan.period, c);
          EXPECT_EQ(plan.rows * plan.group + plan.rest, n * hw);
          EXPECT_GE(plan.rest, 0);
          EXPECT_LT(plan.rest, plan.group);
          EXPECT_LE(plan.group, kMaxPixelsPerRow);
          EXPECT_EQ(plan.SegmentBegin(0), 0);
          EXPECT_EQ(plan.SegmentBegin(plan.segments), plan.rows);
        }
      }
    }
  }
}

TEST(ColumnPlanTest, SegmentsAreOfWholeTilesAndNotEmpty) {
  const ColumnPlan plan =
      MakeColumnPlan({.n = 64, .c = 64, .hw = 785, .layout = Layout::kNhwc});
  EXPECT_EQ(plan.segments, 24);
  for (int64_t s = 0; s < plan.segments; ++s) {
    EXPECT_LT(plan.SegmentBegin(s), plan.SegmentBegin(s + 1));
    EXPECT_EQ(plan.SegmentBegin(s) % kTileRows, 0);
  }
}

TEST(ColumnPlanTest, RowsAreWholeVectors) {
  for (int64_t c = 1; c <= 256; ++c) {
    EXPECT_EQ(PixelsPerRow(c) * c % 16, 0) << c;
    EXPECT_GE(PixelsPerRow(c) * c, 256) << c;
    EXPECT_LE(PixelsPerRow(c), kMaxPixelsPerRow) << c;
  }
  EXPECT_EQ(PixelsPerRow(512), 1);
  EXPECT_EQ(PixelsPerRow(4095), 1);
}

}  // namespace
}  // namespace lockstep
