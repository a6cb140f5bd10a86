// Answers as bytes, and what several ranks' answers are together.
#include "benchmarks/syncbn_turn.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A call from `begin` to `end` with one message in it.
CallTimes Call(double begin, double end, double entered, double left) {
  CallTimes call;
  call.begin = begin;
  call.end = end;
  call.kernels = {1, 0, 0.5, 0, 0};
  call.messages = {{entered, left, 24}};
  return call;
}

RankTurn Turn(const CallTimes& call) {
  RankTurn turn;
  turn.forward = {call};
  turn.wrong = 2;
  return turn;
}

TEST(ParseRankTurnTest, ReadsWhatSerializeWrote) {
  RankTurn turn = Turn(Call(10, 15, 12, 13));
  turn.backward = {Call(1, 2, 1.25, 1.5), CallTimes()};
  turn.note = "who";
  turn.gpu = "where";
  turn.shared_gpu = 1;
  turn.missing = "why";
  const absl::StatusOr<RankTurn> back = ParseRankTurn(Serialize(turn));
  ASSERT_THAT(back, IsOk());
  ASSERT_THAT(back->forward, SizeIs(1));
  ASSERT_THAT(back->backward, SizeIs(2));
  EXPECT_EQ(back->forward[0].begin, 10);
  EXPECT_EQ(back->forward[0].end, 15);
  EXPECT_EQ(back->forward[0].kernels, turn.forward[0].kernels);
  ASSERT_THAT(back->forward[0].messages, SizeIs(1));
  EXPECT_EQ(back->forward[0].messages[0].entered, 12);
  EXPECT_EQ(back->forward[0].messages[0].left, 13);
  EXPECT_EQ(back->forward[0].messages[0].bytes, 24);
  EXPECT_THAT(back->backward[1].messages, IsEmpty());
  EXPECT_EQ(back->wrong, 2);
  EXPECT_EQ(back->note, "who");
  EXPECT_EQ(back->gpu, "where");
  EXPECT_EQ(back->shared_gpu, 1);
  EXPECT_EQ(back->missing, "why");
}

TEST(OrMissingTest, IsForWhatALayerLacksAlone) {
  const absl::StatusOr<RankTurn> missing =
      OrMissing(absl::UnimplementedError("no such type"));
  ASSERT_THAT(missing, IsOk());
  EXPECT_EQ(missing->missing, "no such type");
  EXPECT_THAT(OrMissing(absl::AbortedError("it broke")),
              StatusIs(absl::StatusCode::kAborted, "it broke"));
  RankTurn right;
  right.wrong = 3;
  const absl::StatusOr<RankTurn> there = OrMissing(right);
  ASSERT_THAT(there, IsOk());
  EXPECT_EQ(there->wrong, 3);
  EXPECT_EQ(there->missing, "");
}

TEST(ParseRankTurnTest, RefusesWhatIsCutShortOrTooLong) {
  const std::string whole = Serialize(Turn(Call(10, 15, 12, 13)));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(ParseRankTurn(whole.substr(0, size)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("not whole")))
        << size;
  }
  EXPECT_THAT(ParseRankTurn(whole + "x"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("not whole")));
  // A count far beyond what is there is no reason to allocate.
  EXPECT_THAT(ParseRankTurn(std::string(8, '\x7f')),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("not whole")));
}

TEST(ParseSyncBnRequestTest, ReadsWhatSerializeWrote) {
  SyncBnRequest request;
  request.subject = SyncBnSubject::kCopy;
  request.layer.c = 5;
  request.iterations = 7;
  const absl::StatusOr<SyncBnRequest> back =
      ParseSyncBnRequest(Serialize(request));
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(back->subject, SyncBnSubject::kCopy);
  EXPECT_EQ(back->layer, request.layer);
  EXPECT_EQ(back->iterations, 7);
  EXPECT_THAT(ParseSyncBnRequest("go"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("size")));
}

// Rank 0 enters at 12, rank 1 at 14; they leave at 15 and 16.
TEST(CombineTurnsTest, TellsWaitingFromCommunication) {
  const std::vector<RankTurn> turns = {Turn(Call(10, 17, 12, 15)),
                                       Turn(Call(11, 20, 14, 16))};
  const absl::StatusOr<TeamTurn> all = CombineTurns(turns);
  ASSERT_THAT(all, IsOk());
  ASSERT_THAT(all->forward, SizeIs(1));
  const TeamCall& call = all->forward[0];
  EXPECT_EQ(call.seconds, 9);  // Of rank 1.
  EXPECT_EQ(call.wait, 1);     // (14 - 12 + 0) / 2.
  EXPECT_EQ(call.communication, 1.5);
  EXPECT_EQ(call.Kernels(), 1.5);
  EXPECT_EQ(call.kernels[0], 1);
  EXPECT_EQ(call.kernels[2], 0.5);
  // All parts add up to the mean of 7 and 9.
  EXPECT_EQ(call.wait + call.communication + call.Kernels() + call.other, 8);
  EXPECT_EQ(call.messages, 1);
  EXPECT_EQ(call.message_bytes, 24);
  EXPECT_EQ(all->wrong, 4);
}

TEST(CombineTurnsTest, HasNoWaitWithOneRank) {
  const std::vector<RankTurn> turns = {Turn(Call(10, 17, 12, 15))};
  const absl::StatusOr<TeamTurn> all = CombineTurns(turns);
  ASSERT_THAT(all, IsOk());
  EXPECT_EQ(all->forward[0].wait, 0);
  EXPECT_EQ(all->forward[0].communication, 3);
}

TEST(CombineTurnsTest, IsMissingWhatIsMissingOnOneRank) {
  std::vector<RankTurn> turns = {Turn(CallTimes()), RankTurn()};
  turns[1].missing = "why";
  const absl::StatusOr<TeamTurn> all = CombineTurns(turns);
  ASSERT_THAT(all, IsOk());
  EXPECT_EQ(all->missing, "why");
  EXPECT_THAT(all->forward, IsEmpty());
}

TEST(CombineTurnsTest, RefusesRanksOfDifferentTurns) {
  std::vector<RankTurn> turns = {Turn(CallTimes()), RankTurn()};
  EXPECT_THAT(CombineTurns(turns),
              StatusIs(absl::StatusCode::kDataLoss,
                       "one rank timed 1 calls, another 0"));
  turns[1] = Turn(Call(10, 17, 12, 15));
  EXPECT_THAT(CombineTurns(turns),
              StatusIs(absl::StatusCode::kDataLoss,
                       "one rank saw 0 messages, another 1"));
}

}  // namespace
}  // namespace lockstep
