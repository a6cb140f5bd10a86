// Connections within one process, a rank in a thread, and teams of processes.
#include "benchmarks/harness/rank_team.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/codec.h"
#include "benchmarks/harness/rank_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::ElementsAre;
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
  ASSERT_THAT(ends.near.Send(std::string("a\0b", 3)), IsOk());
  ASSERT_THAT(ends.near.Send(""), IsOk());
  ASSERT_THAT(ends.far.Send("back"), IsOk());
  EXPECT_THAT(ends.far.Receive(Soon()), IsOkAndHolds(std::string("a\0b", 3)));
  EXPECT_THAT(ends.far.Receive(Soon()), IsOkAndHolds(""));
  EXPECT_THAT(ends.near.Receive(Soon()), IsOkAndHolds("back"));
}

// More than a socket holds, and sizes around those of packets.
TEST(TurnChannelTest, CarriesLongMessages) {
  Ends ends = Connect();
  for (const size_t size : {65527, 65528, 65529, 131064, 131065, 3 << 20}) {
    std::string message(size, 'x');
    message.back() = 'y';
    std::thread sender([&] { EXPECT_THAT(ends.near.Send(message), IsOk()); });
    EXPECT_THAT(ends.far.Receive(Soon()), IsOkAndHolds(message)) << size;
    sender.join();
  }
}

TEST(TurnChannelTest, RefusesWhatIsNoMessage) {
  for (const std::string& bytes :
       {std::string("short"), Encode(int64_t{-1}),
        Encode(kLargestTurnMessage + 1), Encode(int64_t{1}) + "xy"}) {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
    TurnChannel channel{OwnedFd(fds[0])};
    const OwnedFd other(fds[1]);
    ASSERT_EQ(write(fds[1], bytes.data(), bytes.size()),
              static_cast<ssize_t>(bytes.size()));
    EXPECT_THAT(channel.Receive(Soon()), StatusIs(absl::StatusCode::kDataLoss,
                                                  "what came is no message"));
  }
}

TEST(TurnChannelTest, RefusesLongerMessages) {
  Ends ends = Connect();
  EXPECT_THAT(ends.near.Send(std::string(kLargestTurnMessage + 1, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "a message of 67108865 bytes"));
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
    EXPECT_THAT(DecodeAnswer(bytes), StatusIs(absl::StatusCode::kDataLoss,
                                              HasSubstr("another size")));
  }
}

// Serves turns in a thread: n is answered with n seconds, 13 with an error.
class Rank {
 public:
  Rank()
      : listener_(*TurnListener::Create()), thread_([this] {
          status_ = ServeTurns<int64_t>(
              listener_.name(), {3, 5},
              [](int64_t request) -> absl::StatusOr<TimedCalls> {
                if (request == 13) return absl::AbortedError("unlucky");
                return TimedCalls{{static_cast<double>(request)}, 0};
              });
        }) {}

  // Waits for the rank to connect and to say who it is; returns the driver's
  // end.
  TurnChannel Channel() {
    TurnChannel channel = *listener_.Accept();
    const absl::StatusOr<RankHello> hello =
        Decode<RankHello>(*channel.Receive(Soon()));
    EXPECT_THAT(hello, IsOk());
    EXPECT_EQ(hello->rank, 3);
    EXPECT_EQ(hello->world_size, 5);
    return channel;
  }

  absl::Status Join() {
    thread_.join();
    return status_;
  }

 private:
  TurnListener listener_;
  absl::Status status_;
  std::thread thread_;
};

absl::StatusOr<TimedCalls> Turn(TurnChannel& driver, int64_t request) {
  EXPECT_THAT(driver.Send(Encode(request)), IsOk());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string reply, driver.Receive(Soon()));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string answer, DecodeAnswer(reply));
  return Decode<TimedCalls>(answer);
}

TEST(ServeTurnsTest, TakesTurnsUntilTheDriverLeaves) {
  Rank rank;
  TurnChannel driver = rank.Channel();
  for (const int64_t request : {1, 2, 12}) {
    const absl::StatusOr<TimedCalls> calls = Turn(driver, request);
    ASSERT_THAT(calls, IsOk());
    EXPECT_THAT(calls->seconds, ElementsAre(request));
  }
  driver = TurnChannel();
  EXPECT_THAT(rank.Join(), IsOk());
}

TEST(ServeTurnsTest, TellsTheDriverWhyATurnFailed) {
  Rank rank;
  TurnChannel driver = rank.Channel();
  EXPECT_THAT(Turn(driver, 13),
              StatusIs(absl::StatusCode::kAborted, "unlucky"));
  EXPECT_THAT(rank.Join(), StatusIs(absl::StatusCode::kAborted, "unlucky"));
}

TEST(ServeTurnsTest, RefusesWhatIsNoRequest) {
  Rank rank;
  TurnChannel driver = rank.Channel();
  ASSERT_THAT(driver.Send("go"), IsOk());
  EXPECT_THAT(rank.Join(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another size")));
}

// Teams of real processes, well-behaved and not.

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

absl::StatusOr<TimedCalls> TakeTurn(RankTeam& team, int64_t request,
                                    absl::Duration timeout = kDeadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<TimedCalls> ranks,
                            team.Ask<TimedCalls>(request, timeout));
  return SlowestOf(ranks);
}

TEST(RankTeamTest, TakesTurnsAndCombinesThem) {
  const std::unique_ptr<RankTeam> team = StartTeam("well");
  ASSERT_THAT(team->AwaitRanks(kDeadline), IsOk());
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<TimedCalls> all = TakeTurn(*team, 1);
    ASSERT_THAT(all, IsOk());
    EXPECT_THAT(all->seconds, ElementsAre(2));
    EXPECT_EQ(all->wrong, 1);
  }
  EXPECT_THAT(team->Stop(kDeadline), IsOk());
}

TEST(RankTeamTest, RefusesAnswersOfAnotherKind) {
  const std::unique_ptr<RankTeam> team = StartTeam("well");
  ASSERT_THAT(team->AwaitRanks(kDeadline), IsOk());
  EXPECT_THAT(team->Ask<RankHello>(int64_t{1}, kDeadline),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another size")));
}

TEST(RankTeamTest, EndsWhileAnotherGoesOn) {
  const std::unique_ptr<RankTeam> first = StartTeam("well");
  ASSERT_THAT(first->AwaitRanks(kDeadline), IsOk());
  const std::unique_ptr<RankTeam> second = StartTeam("well");
  ASSERT_THAT(second->AwaitRanks(kDeadline), IsOk());
  EXPECT_THAT(first->Stop(kDeadline), IsOk());
  EXPECT_THAT(TakeTurn(*second, 1), IsOk());
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
  EXPECT_THAT(TakeTurn(*team, 13),
              StatusIs(absl::StatusCode::kAborted, "rank 1: unlucky"));
}

TEST(RankTeamTest, SaysWhichRankDied) {
  const std::unique_ptr<RankTeam> team = StartTeam("dies");
  ASSERT_THAT(team->AwaitRanks(kDeadline), IsOk());
  EXPECT_THAT(TakeTurn(*team, 13),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("was killed by signal 9 (SIGKILL)")));
}

TEST(RankTeamTest, GivesATurnUp) {
  const std::unique_ptr<RankTeam> team = StartTeam("hangs");
  ASSERT_THAT(team->AwaitRanks(kDeadline), IsOk());
  EXPECT_THAT(TakeTurn(*team, 13, absl::Milliseconds(50)),
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

TEST(SlowestOfTest, TakesTheLongestOfEachCallAndAllThatIsWrong) {
  const std::vector<TimedCalls> ranks = {{{1, 5}, 1}, {{2, 3}, 0}, {{0, 4}, 4}};
  const absl::StatusOr<TimedCalls> all = SlowestOf(ranks);
  ASSERT_THAT(all, IsOk());
  EXPECT_THAT(all->seconds, ElementsAre(2, 5));
  EXPECT_EQ(all->wrong, 5);
  EXPECT_THAT(SlowestOf(std::vector<TimedCalls>{{{1, 5}, 0}, {{1}, 0}}),
              StatusIs(absl::StatusCode::kDataLoss,
                       "one rank timed 2 calls, another 1"));
}

}  // namespace
}  // namespace lockstep::benchmarks
