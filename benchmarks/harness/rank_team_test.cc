// Messages between two ends of one process.
#include "benchmarks/harness/rank_team.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "benchmarks/all_reduce/turn.h"
#include "benchmarks/harness/rank_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

struct Ends {
  TurnChannel near;
  TurnChannel far;
};

Ends Connect() {
  TurnListener listener = *TurnListener::Create();
  Ends ends;
  ends.near = *TurnChannel::Connect(listener.name());
  ends.far = *listener.Accept();
  return ends;
}

TEST(TurnChannelTest, CarriesWholeMessagesBothWays) {
  Ends ends = Connect();
  const std::string longest(kLargestTurnMessage, 'x');
  ASSERT_THAT(ends.near.Send(std::string("a\0b", 3)), IsOk());
  ASSERT_THAT(ends.near.Send(longest), IsOk());
  ASSERT_THAT(ends.far.Send("back"), IsOk());
  EXPECT_THAT(ends.far.Receive(Soon()), IsOkAndHolds(std::string("a\0b", 3)));
  EXPECT_THAT(ends.far.Receive(Soon()), IsOkAndHolds(longest));
  EXPECT_THAT(ends.near.Receive(Soon()), IsOkAndHolds("back"));
}

TEST(TurnChannelTest, RefusesLongerMessages) {
  Ends ends = Connect();
  EXPECT_THAT(
      ends.near.Send(std::string(kLargestTurnMessage + 1, 'x')),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("65537 bytes")));
}

TEST(TurnChannelTest, SeesThatTheOtherEndIsGone) {
  Ends ends = Connect();
  ends.far = TurnChannel();
  EXPECT_THAT(ends.near.Receive(absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("gone")));
  EXPECT_THAT(ends.near.Send("x"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("gone")));
}

TEST(TurnChannelTest, WaitsNoLongerThanTheDeadline) {
  Ends ends = Connect();
  EXPECT_THAT(
      ends.near.Receive(absl::Now() + absl::Milliseconds(1)),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("in time")));
}

TEST(TurnListenerTest, HasANameOfItsOwn) {
  EXPECT_NE(TurnListener::Create()->name(), TurnListener::Create()->name());
}

TEST(TurnListenerTest, CannotBeReachedOnceItIsGone) {
  const std::string name = TurnListener::Create()->name();
  EXPECT_THAT(TurnChannel::Connect(name),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("the driver of the benchmark")));
}

TEST(TurnListenerTest, LetsGoOfThoseWhomItDidNotAccept) {
  TurnListener listener = *TurnListener::Create();
  TurnChannel waiting = *TurnChannel::Connect(listener.name());
  listener.Close();
  EXPECT_THAT(waiting.Receive(Soon()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("gone")));
}

TEST(TurnListenerTest, IsNotReachedByANameTooLong) {
  EXPECT_THAT(TurnChannel::Connect(std::string(1000, 'a')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is not the name of a listener")));
}

// A rank in a thread, its driver in the test; answers as bytes.

TEST(DecodeAnswerTest, ReadsWhatEncodeWrote) {
  for (const std::string& text : {std::string(), std::string("\0a", 2)}) {
    EXPECT_THAT(DecodeAnswer(EncodeAnswer(text)), IsOkAndHolds(text));
  }
  EXPECT_THAT(DecodeAnswer(EncodeAnswer(absl::AbortedError("why"))),
              StatusIs(absl::StatusCode::kAborted, "why"));
}

TEST(DecodeAnswerTest, RefusesWhatIsCutShort) {
  for (const char* bytes : {"", "a", "abc"}) {
    EXPECT_THAT(DecodeAnswer(bytes),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("cut short")));
  }
}

TEST(ParseHelloTest, ReadsWhatSerializeWrote) {
  const absl::StatusOr<RankHello> hello = ParseHello(Serialize({3, 5}));
  ASSERT_THAT(hello, IsOk());
  EXPECT_EQ(hello->rank, 3);
  EXPECT_EQ(hello->world_size, 5);
  EXPECT_THAT(ParseHello("short"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("size")));
}

TEST(ServeMessagesTest, AnswersUntilAnAnswerFails) {
  absl::StatusOr<TurnListener> listener = TurnListener::Create();
  ASSERT_THAT(listener, IsOk());
  absl::Status status;
  std::thread rank([&] {
    status = ServeMessages(
        listener->name(), {0, 1},
        [](absl::string_view message) -> absl::StatusOr<std::string> {
          if (message == "13") return absl::AbortedError("unlucky");
          return absl::StrCat("<", message, ">");
        });
  });
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  absl::StatusOr<TurnChannel> driver = listener->Accept();
  ASSERT_THAT(driver, IsOk());
  EXPECT_THAT(ParseHello(*driver->Receive(deadline)), IsOk());
  ASSERT_THAT(driver->Send("12"), IsOk());
  EXPECT_THAT(DecodeAnswer(*driver->Receive(deadline)), IsOkAndHolds("<12>"));
  ASSERT_THAT(driver->Send("13"), IsOk());
  EXPECT_THAT(DecodeAnswer(*driver->Receive(deadline)),
              StatusIs(absl::StatusCode::kAborted, "unlucky"));
  rank.join();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, "unlucky"));
}

// Teams of real processes, well-behaved and not.

using ::testing::ElementsAre;

constexpr absl::Duration kDeadline = absl::Seconds(20);

std::unique_ptr<RankTeam> StartTeam(const std::string& how) {
  absl::StatusOr<std::unique_ptr<RankTeam>> team =
      RankTeam::Start([&](const std::string& listener) {
        TeamCommand command;
        command.argv = {"benchmarks/harness/rank_team_test_rank", listener,
                        how};
        command.nproc = command.connections = command.world_size = 2;
        return command;
      });
  EXPECT_THAT(team, IsOk());
  return *std::move(team);
}

TurnRequest Request(int64_t count) {
  TurnRequest request;
  request.count = count;
  return request;
}

TEST(RankTeamTest, TakesTurnsAndCombinesThem) {
  const std::unique_ptr<RankTeam> team = StartTeam("well");
  ASSERT_THAT(team->AwaitRanks(kDeadline), IsOk());
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<TurnResult> result =
        team->TakeTurn(Request(1), kDeadline);
    ASSERT_THAT(result, IsOk());
    EXPECT_THAT(result->seconds, ElementsAre(2));
    EXPECT_EQ(result->wrong, 1);
  }
  EXPECT_THAT(team->Stop(kDeadline), IsOk());
}

TEST(RankTeamTest, EndsWhileAnotherGoesOn) {
  const std::unique_ptr<RankTeam> first = StartTeam("well");
  ASSERT_THAT(first->AwaitRanks(kDeadline), IsOk());
  const std::unique_ptr<RankTeam> second = StartTeam("well");
  ASSERT_THAT(second->AwaitRanks(kDeadline), IsOk());
  EXPECT_THAT(first->Stop(kDeadline), IsOk());
  EXPECT_THAT(second->TakeTurn(Request(1), kDeadline), IsOk());
  EXPECT_THAT(second->Stop(kDeadline), IsOk());
}

TEST(RankTeamTest, RefusesAWorldOfAnotherSize) {
  EXPECT_THAT(StartTeam("singletons")->AwaitRanks(kDeadline),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "a rank is one of 1, not of 2 as asked"));
}

TEST(RankTeamTest, RefusesTheSameRankTwice) {
  EXPECT_THAT(StartTeam("twins")->AwaitRanks(kDeadline),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "rank 0 of 2 is one too many"));
}

TEST(RankTeamTest, QuotesWhatARankSaidThatDidNotCome) {
  EXPECT_THAT(StartTeam("mute")->AwaitRanks(kDeadline),
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 is sorry"));
}

TEST(RankTeamTest, DoesNotWaitForeverForRanks) {
  const std::unique_ptr<RankTeam> team = StartTeam("silent");
  EXPECT_THAT(team->AwaitRanks(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "0 of 2 ranks connected within 1ms"));
  EXPECT_THAT(team->Stop(absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kAborted,
                       "the ranks did not end within 50ms"));
}

TEST(RankTeamTest, SaysWhichRankFailedAndWhy) {
  const std::unique_ptr<RankTeam> team = StartTeam("fails");
  ASSERT_THAT(team->AwaitRanks(kDeadline), IsOk());
  EXPECT_THAT(team->TakeTurn(Request(13), kDeadline),
              StatusIs(absl::StatusCode::kAborted, "rank 1: unlucky"));
}

TEST(RankTeamTest, SaysWhichRankDied) {
  const std::unique_ptr<RankTeam> team = StartTeam("dies");
  ASSERT_THAT(team->AwaitRanks(kDeadline), IsOk());
  EXPECT_THAT(team->TakeTurn(Request(13), kDeadline),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("was killed by signal 9 (SIGKILL)")));
}

TEST(RankTeamTest, GivesATurnUp) {
  const std::unique_ptr<RankTeam> team = StartTeam("hangs");
  ASSERT_THAT(team->AwaitRanks(kDeadline), IsOk());
  EXPECT_THAT(team->TakeTurn(Request(13), absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "rank 1: no answer came in time"));
  EXPECT_THAT(team->Stop(absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kAborted,
                       "the ranks did not end within 50ms"));
}

TEST(RankTeamTest, ReportsAProgramThatIsNotThere) {
  absl::StatusOr<std::unique_ptr<RankTeam>> team =
      RankTeam::Start([&](const std::string&) {
        TeamCommand command;
        command.argv = {"/absent/program"};
        return command;
      });
  ASSERT_THAT(team, IsOk());
  EXPECT_THAT(
      (*team)->AwaitRanks(kDeadline),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/absent/program")));
}

}  // namespace
}  // namespace lockstep::benchmarks
