// What several ranks' answers are together, and what PyTorch's are.
#include "benchmarks/syncbn/turn.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/codec.h"
#include "benchmarks/harness/fake_python.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/syncbn/rank.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"

namespace lockstep::benchmarks {
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

TEST(RankTurnTest, TravelsWhole) {
  RankTurn turn = Turn(Call(10, 15, 12, 13));
  turn.backward = {Call(1, 2, 1.25, 1.5), CallTimes()};
  turn.note = "who";
  turn.gpu = "where";
  turn.shared_gpu = 1;
  turn.missing = "why";
  const absl::StatusOr<RankTurn> back = Decode<RankTurn>(Encode(turn));
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

TEST(SyncBnRequestTest, TravelsWhole) {
  SyncBnRequest request;
  request.subject = SyncBnSubject::kCopy;
  request.layer.c = 5;
  request.iterations = 7;
  const absl::StatusOr<SyncBnRequest> back =
      Decode<SyncBnRequest>(Encode(request));
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(back->subject, SyncBnSubject::kCopy);
  EXPECT_EQ(back->layer, request.layer);
  EXPECT_EQ(back->iterations, 7);
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

// Programs in the place of Python: right, wrong, dead and silent ones; and
// PyTorch itself, where there is one.

using ::testing::AllOf;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

absl::StatusOr<SyncBnPeer> Start(const std::string& script,
                                 absl::Duration timeout = absl::Seconds(60)) {
  return SyncBnPeer::Start({MakePython(script)}, absl::Now() + timeout);
}

absl::Time Later() { return absl::Now() + absl::Minutes(1); }

SyncBnRequest Request(int iterations) {
  SyncBnRequest request;
  request.layer = {.n = 2, .h = 3, .w = 5, .c = 7, .seed = 11};
  request.warmup = 1;
  request.iterations = iterations;
  return request;
}

constexpr char kReady[] = "echo 'lockstep: ready 2.1.0 ValueError: no'; ";

TEST(SyncBnPeerTest, HandsOnWhatItTook) {
  absl::StatusOr<SyncBnPeer> peer = Start(absl::StrCat(
      kReady, "while read line; do echo lockstep: timed 1 2 3 4; done"));
  ASSERT_THAT(peer, IsOk());
  EXPECT_THAT(peer->name(),
              AllOf(HasSubstr("PyTorch 2.1.0 ("),
                    HasSubstr("SyncBatchNorm on the CPU: ValueError: no")));
  const absl::StatusOr<RankTurn> turn = peer->Time(Request(2), Later());
  ASSERT_THAT(turn, IsOk());
  EXPECT_EQ(turn->note, peer->name());
  ASSERT_THAT(turn->forward, SizeIs(2));
  ASSERT_THAT(turn->backward, SizeIs(2));
  EXPECT_EQ(turn->forward[1].end, 3);
  EXPECT_EQ(turn->backward[1].end, 4);
}

TEST(SyncBnPeerTest, SaysWhatItCannot) {
  absl::StatusOr<SyncBnPeer> peer = Start(absl::StrCat(
      kReady, "read line; echo lockstep: cannot RuntimeError: no Half; cat"));
  ASSERT_THAT(peer, IsOk());
  const absl::StatusOr<RankTurn> turn = peer->Time(Request(2), Later());
  ASSERT_THAT(turn, IsOk());
  EXPECT_EQ(turn->missing, "RuntimeError: no Half");
  EXPECT_THAT(turn->forward, IsEmpty());
}

TEST(SyncBnPeerTest, SaysWhyThereIsNone) {
  EXPECT_THAT(Start("echo lockstep: missing No module named x"),
              StatusIs(kUnavailable, HasSubstr("No module named x")));
  EXPECT_THAT(Start("sleep 1000", absl::Milliseconds(50)),
              StatusIs(kUnavailable, HasSubstr("did not answer in time")));
}

TEST(SyncBnPeerTest, GivesUpOneThatHangs) {
  absl::StatusOr<SyncBnPeer> peer = Start(absl::StrCat(kReady, "sleep 1000"));
  ASSERT_THAT(peer, IsOk());
  EXPECT_THAT(peer->Time(Request(1), absl::Now() + absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("did not answer in time")));
}

TEST(SyncBnPeerTest, ReportsOneThatDies) {
  absl::StatusOr<SyncBnPeer> peer =
      Start(absl::StrCat(kReady, "read line; echo MemoryError; exit 1"));
  ASSERT_THAT(peer, IsOk());
  EXPECT_THAT(peer->Time(Request(1), Later()),
              StatusIs(kUnavailable, HasSubstr("it said: MemoryError")));
}

TEST(PeerLineTest, SaysWhatToTime) {
  SyncBnRequest request = Request(3);
  EXPECT_EQ(PeerLine(request), "2 7 3 5 nhwc float32 11 1 3");
  request.layer.layout = Layout::kNchw;
  request.layer.type = DataType::kBFloat16;
  EXPECT_EQ(PeerLine(request), "2 7 3 5 nchw bfloat16 11 1 3");
}

TEST(ParsePeerAnswerTest, TakesNothingElse) {
  EXPECT_THAT(ParsePeerAnswer(Request(1), "timed 0.5 1e-3"), IsOk());
  for (const char* answer :
       {"", "timed", "timed 1", "timed 1 2 3", "took 1 2", "timed 0 1",
        "timed nan 1", "timed inf 1", "timed -1 1", "timed 1 x"}) {
    EXPECT_THAT(
        ParsePeerAnswer(Request(1), answer),
        StatusIs(absl::StatusCode::kInternal, HasSubstr("is not understood")))
        << answer;
  }
}

// With the script itself, if some Python has PyTorch.
TEST(SyncBnPeerTest, TimesPyTorch) {
  absl::StatusOr<SyncBnPeer> peer =
      SyncBnPeer::Start(PythonsToTry(""), Later());
  if (!peer.ok()) GTEST_SKIP() << peer.status();
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    SyncBnRequest request = Request(3);
    request.layer.layout = layout;
    const absl::StatusOr<RankTurn> turn = peer->Time(request, Later());
    ASSERT_THAT(turn, IsOk());
    EXPECT_EQ(turn->missing, "");
    EXPECT_THAT(turn->forward, SizeIs(3));
  }
}

}  // namespace
}  // namespace lockstep::benchmarks
