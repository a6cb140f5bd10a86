// Tests requests, and the combination of several ranks' answers.
#include "benchmarks/syncbn/turn.h"

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/syncbn/settings.h"
#include "collectives/collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/batch_norm.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(SpecOfTest, HasAllThatMakesTheInputs) {
  SyncBnSettings settings;
  settings.seed = 9;
  settings.layout = Layout::kNchw;
  const LayerSpec spec = SpecOf(settings, {ShapeSet::kResNet18, 2, 3, 5, 7});
  EXPECT_EQ(spec.shape(), (ActivationShape{2, 7, 15, Layout::kNchw}));
  EXPECT_EQ(spec.seed, 9u);
  LayerSpec other = spec;
  EXPECT_EQ(other, spec);
  other.seed = 8;
  EXPECT_FALSE(other == spec);
}

// The combination of several ranks' answers.

// Returns a call from `begin` to `end` with one message in it.
CallTimes Call(double begin, double end, double entered, double left) {
  return {.begin = begin,
          .end = end,
          .kernels = {1, 0, 0.5, 0, 0},
          .messages = {{entered, left, 24}}};
}

RankTurn Turn(const CallTimes& call) { return {.forward = {call}, .wrong = 2}; }

TEST(RankTurnTest, TravelsWhole) {
  RankTurn turn = Turn(Call(10, 15, 12, 13));
  turn.backward = {Call(1, 2, 1.25, 1.5), CallTimes()};
  turn.note = "who";
  turn.gpu = "where";
  turn.shared_gpu = 1;
  turn.sm_mhz = 3;
  turn.host_seconds = 4;
  turn.missing = "why";
  EXPECT_THAT(Decode<RankTurn>(Encode(turn)), IsOkAndHolds(turn));
  const SyncBnRequest request = {
      .subject = SyncBnSubject::kCopy, .layer = {.c = 5}, .iterations = 7};
  EXPECT_THAT(Decode<SyncBnRequest>(Encode(request)), IsOkAndHolds(request));
}

TEST(OrMissingTest, IsForWhatALayerLacksAlone) {
  const absl::StatusOr<RankTurn> missing =
      OrMissing(absl::UnimplementedError("no such type"));
  ASSERT_THAT(missing, IsOk());
  EXPECT_EQ(missing->missing, "no such type");
  EXPECT_THAT(OrMissing(absl::AbortedError("it broke")),
              StatusIs(absl::StatusCode::kAborted, "it broke"));
  RankTurn right = {.wrong = 3};
  EXPECT_THAT(OrMissing(right), IsOkAndHolds(right));
}

// Rank 0 enters at 12, rank 1 at 14. They leave at 15 and 16.
TEST(CombineTurnsTest, TellsWaitingFromCommunication) {
  const std::vector<RankTurn> turns = {Turn(Call(10, 17, 12, 15)),
                                       Turn(Call(11, 20, 14, 16))};
  const absl::StatusOr<TeamTurn> all = CombineTurns(turns);
  ASSERT_THAT(all, IsOk());
  ASSERT_THAT(all->forward, SizeIs(1));
  const TeamCall& call = all->forward[0];
  EXPECT_EQ(call.seconds, 9);     // Rank 1's.
  EXPECT_EQ(call.split.wait, 1);  // (14 - 12 + 0) / 2.
  EXPECT_EQ(call.split.communication, 1.5);
  EXPECT_EQ(call.split.kernels[0], 1);
  EXPECT_EQ(call.split.kernels[2], 0.5);
  // All parts add up to the mean of 7 and 9.
  EXPECT_EQ(call.split.Sum(), 8);
  EXPECT_EQ(call.messages, 1);
  EXPECT_EQ(call.message_bytes, 24);
  EXPECT_EQ(all->wrong, 4);
  // A single rank does not wait.
  const absl::StatusOr<TeamTurn> one = CombineTurns(std::span(turns).first(1));
  ASSERT_THAT(one, IsOk());
  EXPECT_EQ(one->forward[0].split.wait, 0);
  EXPECT_EQ(one->forward[0].split.communication, 3);
}

TEST(CombineTurnsTest, LacksWhatOneRankLacksAndRefusesDifferentTurns) {
  std::vector<RankTurn> turns = {Turn(CallTimes()), RankTurn()};
  turns[1].missing = "why";
  const absl::StatusOr<TeamTurn> all = CombineTurns(turns);
  ASSERT_THAT(all, IsOk());
  EXPECT_EQ(all->missing, "why");
  EXPECT_THAT(all->forward, IsEmpty());
  turns[1].missing.clear();
  EXPECT_THAT(CombineTurns(turns),
              StatusIs(absl::StatusCode::kDataLoss,
                       "one rank timed 1 calls, another 0"));
  turns[1] = Turn(Call(10, 17, 12, 15));
  EXPECT_THAT(CombineTurns(turns),
              StatusIs(absl::StatusCode::kDataLoss,
                       "one rank saw 0 messages, another 1"));
}

}  // namespace
}  // namespace lockstep::benchmarks
