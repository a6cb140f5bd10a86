// Tests of the properties that all kinds of ranks share. A test that includes
// this header must define TakeTurns.
#ifndef LOCKSTEP_BENCHMARKS_SYNCBN_RANK_SUITE_H_
#define LOCKSTEP_BENCHMARKS_SYNCBN_RANK_SUITE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/data_types.h"
#include "benchmarks/syncbn/turn.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"

namespace lockstep::benchmarks {

inline SyncBnRequest LayerRequest(SyncBnSubject subject,
                                  DataType type = DataType::kFloat32,
                                  Layout layout = Layout::kNhwc) {
  return {.subject = subject,
          .layer =
              {.n = 2, .h = 4, .w = 4, .c = 16, .layout = layout, .type = type},
          .warmup = 1,
          .iterations = 2};
}

// Takes the turns on `world_size` ranks, and combines each turn. Returns an
// empty vector if the device is missing; the test is then skipped.
std::vector<TeamTurn> TakeTurns(int world_size,
                                const std::vector<SyncBnRequest>& requests);

TEST(SyncBnRankTest, IsRightAndTimesEveryCall) {
  for (const int world_size : {1, 2, 3}) {
    const std::vector<TeamTurn> turns =
        TakeTurns(world_size, {LayerRequest(SyncBnSubject::kLocal),
                               LayerRequest(SyncBnSubject::kSync),
                               LayerRequest(SyncBnSubject::kSplit),
                               LayerRequest(SyncBnSubject::kOwnLocal),
                               LayerRequest(SyncBnSubject::kLocal)});
    if (turns.empty()) GTEST_SKIP() << "no GPU";
    for (const TeamTurn& turn : turns) {
      EXPECT_EQ(turn.wrong, 0);
      EXPECT_EQ(turn.missing, "");
      ASSERT_GE(turn.forward.size(), turn.gpu.empty() ? 2u : 1u);  // The number
                                                                   // of laps.
      ASSERT_EQ(turn.backward.size(), turn.forward.size());
      for (const TeamCall& call : turn.forward) EXPECT_GT(call.seconds, 0);
      for (const TeamCall& call : turn.backward) EXPECT_GT(call.seconds, 0);
    }
  }
}

TEST(SyncBnRankTest, IsRightInEveryTypeAndLayout) {
  for (const DataType type :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
      const std::vector<TeamTurn> turns =
          TakeTurns(2, {LayerRequest(SyncBnSubject::kOwnLocal, type, layout),
                        LayerRequest(SyncBnSubject::kSync, type, layout)});
      if (turns.empty()) GTEST_SKIP() << "no GPU";
      for (const TeamTurn& turn : turns) {
        EXPECT_EQ(turn.wrong, 0) << Name(type) << " " << Name(layout);
      }
    }
  }
}

// One message per pass: 16 + 8 c bytes forward, with 8 c rounded up to 16, and
// 8 c bytes backward.
TEST(SyncBnRankTest, SplitsSyncBatchNormAlone) {
  for (const int64_t channels : {15, 16}) {
    SyncBnRequest sync = LayerRequest(SyncBnSubject::kSync);
    SyncBnRequest split = LayerRequest(SyncBnSubject::kSplit);
    sync.layer.c = split.layer.c = channels;
    const std::vector<TeamTurn> turns = TakeTurns(2, {sync, split});
    if (turns.empty()) GTEST_SKIP() << "no GPU";
    EXPECT_EQ(turns[0].wrong + turns[1].wrong, 0);
    EXPECT_EQ(turns[0].forward[0].messages, 0);
    EXPECT_EQ(turns[0].forward[0].split.Kernels(), 0);
    const auto expect_timed = [](const TeamCall& call, TimedKernel first,
                                 TimedKernel last, int64_t bytes) {
      for (int i = 0; i < kTimedKernels; ++i) {
        const auto kernel = static_cast<TimedKernel>(i);
        EXPECT_EQ(call.split.kernels[static_cast<size_t>(i)] > 0,
                  first <= kernel && kernel <= last)
            << Name(kernel);
      }
      EXPECT_EQ(call.messages, 1);
      EXPECT_EQ(call.message_bytes, bytes);
      EXPECT_GT(call.split.communication, 0);
      EXPECT_GE(call.split.wait, 0);
      EXPECT_GE(call.split.other, 0);
    };
    for (const TeamCall& call : turns[1].forward) {
      expect_timed(call, TimedKernel::kMoments, TimedKernel::kNormalize,
                   16 + (8 * channels + 15) / 16 * 16);
    }
    for (const TeamCall& call : turns[1].backward) {
      expect_timed(call, TimedKernel::kBackwardReduce,
                   TimedKernel::kBackwardInput, 8 * channels);
    }
  }
}

TEST(SyncBnRankTest, TimesMessagesAndCopies) {
  const std::vector<TeamTurn> turns =
      TakeTurns(2, {LayerRequest(SyncBnSubject::kMessage),
                    LayerRequest(SyncBnSubject::kCopy)});
  if (turns.empty()) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(turns[0].forward.size(), 2u);
  EXPECT_EQ(turns[0].backward.size(), 2u);
  EXPECT_GT(turns[0].forward[0].seconds, 0);
  EXPECT_GE(turns[1].forward.size(), turns[1].gpu.empty() ? 2u : 1u);
  EXPECT_TRUE(turns[1].backward.empty());
  EXPECT_GT(turns[1].forward[0].seconds, 0);
  EXPECT_EQ(turns[1].wrong, 0);
}

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SYNCBN_RANK_SUITE_H_
