// The algorithms alone: that segments tile what they are cut from, the shape of
// the trees, and rings and trees at every small size, also where
// RunOverTransport would choose another algorithm; and messages between two.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/over_transport.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::HasSubstr;

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
  EXPECT_EQ(r.peer_group, 2);
  EXPECT_TRUE(r.peer_is_earlier);
  EXPECT_EQ(r.mine, (Segment{2 * half + 1, half}));
  EXPECT_EQ(r.peers, (Segment{half, half + 1}));
}

constexpr int64_t kRingCounts = 40;

absl::Status RunRing(Transport& transport, const Collective& call) {
  switch (call.operation) {
    case Operation::kAllReduce:
      return RingAllReduce(transport, call.input, call.output, call.op);
    case Operation::kReduce:
      return RingReduce(transport, call.input, call.output, call.op, call.peer);
    case Operation::kReduceScatter:
      return RingReduceScatter(transport, call.input, call.output, call.op);
    default:
      return absl::InternalError("no reduction");
  }
}

// World size, and how many pieces may be under way.
class RingTest : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int world_size() const { return std::get<0>(GetParam()); }

  // All ranks make the calls, one after the other, without meeting in between.
  void Check(const std::vector<CheckedCall>& calls) {
    const auto statuses = RunOverMemory(
        world_size(), {.max_pieces = std::get<1>(GetParam())},
        [&](Transport& transport) {
          return RunAndCheck(transport, calls, AdditionOrder::kRing, RunRing);
        });
    EXPECT_THAT(FirstCause(statuses), IsOk());
  }
};

TEST_P(RingTest, ReducesInTheOrderOfTheRing) {
  std::vector<CheckedCall> calls;
  for (int64_t count = 0; count < kRingCounts; ++count) {
    for (const bool in_place : {false, true}) {
      for (const DataType type :
           {DataType::kFloat32, DataType::kBFloat16, DataType::kUInt8}) {
        CheckedCall call = {Operation::kAllReduce, type, ReduceOp::kAverage,
                            count};
        call.in_place = in_place;
        calls.push_back(call);
        call.operation = Operation::kReduceScatter;
        calls.push_back(call);
        call.operation = Operation::kReduce;
        call.root = static_cast<int>(count % world_size());
        calls.push_back(call);
      }
    }
  }
  Check(calls);
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, RingTest,
                         testing::Combine(testing::Values(2, 3, 4, 5, 8),
                                          testing::Values(2, 3, 6)),
                         [](const auto& info) {
                           return absl::StrCat("P", std::get<0>(info.param),
                                               "Pieces",
                                               std::get<1>(info.param));
                         });

// Runs one call on rank 0 and one on rank 1.
std::vector<absl::Status> RunPair(const Collective& first,
                                  const Collective& second) {
  return RunOverMemory(
      2, {.timeout = absl::Seconds(5)}, [&](Transport& transport) {
        return RunOverTransport(transport,
                                transport.rank() == 0 ? first : second,
                                Algorithm::kAuto);
      });
}

TEST(SendReceiveTest, BothReportTheSameDisagreement) {
  float a[4] = {};
  float b[4] = {};
  int32_t ints[4] = {};
  const Collective send = Collective::Send(a, 1, {"sender.cc", 7});
  const struct {
    Collective second;
    const char* call;
  } kCases[] = {
      {Collective::Receive(std::span(b, 3), 0, {"peer.cc", 9}),
       "Receive(float32[3], from rank 0) at peer.cc:9"},
      {Collective::Receive(ints, 0, {"peer.cc", 9}),
       "Receive(int32[4], from rank 0) at peer.cc:9"},
      {Collective::Send(b, 0, {"peer.cc", 9}),
       "Send(float32[4], to rank 0) at peer.cc:9"},
  };
  for (const auto& [second, call] : kCases) {
    EXPECT_THAT(
        RunPair(send, second),
        Each(StatusIs(
            absl::StatusCode::kInvalidArgument,
            absl::StrCat("ranks disagree: rank 0 called Send(float32[4], to "
                         "rank 1) at sender.cc:7, rank 1 called ",
                         call))));
  }
}

TEST(SendReceiveTest, NobodyThereEndsAtTheDeadline) {
  float a[2] = {};
  const auto statuses = RunOverMemory(
      2, {.timeout = absl::Milliseconds(50)},
      [&](Transport& transport) -> absl::Status {
        // Rank 1 waits for something else.
        if (transport.rank() == 1) {
          return transport.Wait(Transport::kNobody, 1);
        }
        return RunOverTransport(transport, Collective::Receive(a, 1),
                                Algorithm::kAuto);
      });
  EXPECT_THAT(FirstCause(statuses),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("waited for rank 1")));
}

}  // namespace
}  // namespace lockstep
