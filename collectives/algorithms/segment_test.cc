// That segments and pieces tile what they are cut from.
#include "collectives/algorithms/segment.h"

#include <cstdint>

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
          // Only the last is short.
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
  // The end of the last does not overflow.
  EXPECT_EQ(PieceCount(INT64_MAX, 4), (int64_t{1} << 61));
  EXPECT_EQ(PieceOf({0, INT64_MAX}, 4, (int64_t{1} << 61) - 1),
            (Segment{INT64_MAX - 3, 3}));
}

}  // namespace
}  // namespace lockstep
