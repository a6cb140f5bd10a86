// Tests values as bytes, connections within one process, teams of processes,
// and programs that stand in for Python: right, wrong, dead and silent ones.
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/testing.h"
#include "benchmarks/harness/torch_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/document.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Deadline Soon() { return Deadline(absl::Seconds(20)); }

struct Ends {
  TurnChannel near;
  TurnChannel far;
};

Ends Connect() {
  TurnListener listener = *TurnListener::Create();
  return {.near = *TurnChannel::Connect(listener.name()),
          .far = *listener.Accept()};
}

// Open MPI's ranks would wait for minutes if there is no room for their files.
TEST(CreateFolderWithRoomTest, PassesOverFoldersWithoutRoom) {
  const std::string here = testing::TempDir();
  absl::StatusOr<TemporaryFolder> folder =
      CreateFolderWithRoom({"/absent", here}, 1);
  ASSERT_THAT(folder, IsOk());
  EXPECT_THAT(folder->path(), StartsWith(here));
  EXPECT_THAT(
      CreateFolderWithRoom({"/absent", here}, int64_t{1} << 60),
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(StartsWith("Open MPI's ranks share files of "),
                     HasSubstr("/absent cannot be used"), EndsWith(" free"))));
}

// mpirun binds each rank to a core of its own. The cores of a host are those of
// all its ranks together, unless a quota allows fewer.
TEST(HostsOfTest, AddsUpTheCoresOfBoundRanks) {
  const std::vector<report::Host> hosts =
      HostsOf({{.node = "x", .name = "one", .cpus = {0}},
               {.node = "y", .name = "two", .cpus = {0, 1}, .cores = 2},
               {.node = "x", .name = "one", .cpus = {3}},
               {.node = "z", .name = "two", .cpus = {0, 1, 2, 3}, .cores = 2},
               {.node = "y", .name = "two", .cpus = {0, 1}, .cores = 2}});
  EXPECT_EQ(report::HostsText(hosts),
            "one (ranks 0, 2 on 2 cores), two (ranks 1, 4 on 2 cores), "
            "two (rank 3 on 2 cores)");
}

// Values as bytes.

struct Part {
  int32_t number = 0;
  std::vector<double> list;

  static auto Members(auto& self) { return std::tie(self.number, self.list); }
  friend bool operator==(const Part&, const Part&) = default;
};

struct Whole {
  bool flag = false;
  std::string text;
  std::vector<Part> parts;

  static auto Members(auto& self) {
    return std::tie(self.flag, self.text, self.parts);
  }
  friend bool operator==(const Whole&, const Whole&) = default;
};

TEST(CodecTest, DecodesWhatItEncodes) {
  const Whole whole = {true, std::string("a\0b", 3), {{7, {0.5, 0.25}}, {}}};
  EXPECT_THAT(Decode<Whole>(Encode(whole)), IsOkAndHolds(whole));
  EXPECT_THAT(Decode<double>(Encode(0.1)), IsOkAndHolds(0.1));
}

TEST(CodecTest, RefusesWhatIsCutShortOrTooLong) {
  const std::string whole = Encode(Whole{true, "text", {{7, {0.5, 0.25}}, {}}});
  const auto refused = StatusIs(absl::StatusCode::kDataLoss,
                                "a message of another size than expected");
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(Decode<Whole>(whole.substr(0, size)), refused) << size;
  }
  EXPECT_THAT(Decode<Whole>(whole + "x"), refused);
  // A count far beyond the bytes must not cause an allocation.
  EXPECT_THAT(Decode<std::vector<Part>>(std::string(8, '\x7f')), refused);
  EXPECT_THAT(Decode<std::string>(std::string(8, '\xff')), refused);
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

// Sends more than a socket holds, and sizes around those of packets.
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
    EXPECT_THAT(channel.Receive(Soon()),
                StatusIs(absl::StatusCode::kDataLoss,
                         "the received bytes are not a message"));
  }
}

TEST(TurnChannelTest, RefusesLongerMessagesAndSeesThatTheOtherEndIsGone) {
  Ends ends = Connect();
  EXPECT_THAT(ends.near.Send(std::string(kLargestTurnMessage + 1, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "a message of 67108865 bytes is too long"));
  ends.far = TurnChannel();
  EXPECT_THAT(ends.near.Receive(Deadline(absl::InfiniteDuration())),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("the other end has closed the connection")));
  EXPECT_THAT(ends.near.Send("x"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("the other end has closed the connection")));
}

TEST(TurnChannelTest, WaitsNoLongerThanTheDeadline) {
  Ends ends = Connect();
  EXPECT_THAT(
      ends.near.Receive(Deadline(absl::Milliseconds(1))),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("in time")));
}

TEST(TurnListenerTest, IsReachedByItsOwnNameAloneWhileItIsThere) {
  EXPECT_NE(TurnListener::Create()->name(), TurnListener::Create()->name());
  EXPECT_THAT(TurnChannel::Connect(std::string(1000, 'a')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is not the name of a listener")));
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
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("the other end has closed the connection")));
}

// Teams of real processes, which behave well or badly.

constexpr absl::Duration kDeadline = absl::Seconds(20);

std::unique_ptr<RankTeam> StartTeam(const std::string& how) {
  absl::StatusOr<std::unique_ptr<RankTeam>> team =
      RankTeam::Start([&](const std::string& listener) {
        return TeamCommand{
            .argv = {"benchmarks/harness/rank_team_test_rank", listener, how},
            .nproc = 2,
            .world_size = 2};
      });
  EXPECT_THAT(team, IsOk());
  return *std::move(team);
}

// Returns a team whose ranks have connected.
std::unique_ptr<RankTeam> StartReadyTeam(const std::string& how) {
  std::unique_ptr<RankTeam> team = StartTeam(how);
  EXPECT_THAT(team->AwaitRanks(kDeadline), IsOk());
  return team;
}

absl::StatusOr<TimedCalls> TakeTurn(RankTeam& team, int64_t request,
                                    absl::Duration timeout = kDeadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<TimedCalls> ranks,
                            team.Ask<TimedCalls>(request, timeout));
  return SlowestOf(ranks);
}

TEST(RankTeamTest, TakesTurnsAndCombinesThem) {
  const std::unique_ptr<RankTeam> team = StartReadyTeam("well");
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<TimedCalls> all = TakeTurn(*team, 1);
    ASSERT_THAT(all, IsOk());
    EXPECT_THAT(all->seconds, ElementsAre(2));
    EXPECT_EQ(all->wrong, 1);
  }
  EXPECT_THAT(team->Stop(kDeadline), IsOk());
}

TEST(RankTeamTest, RefusesRequestsAndAnswersOfAnotherKind) {
  const auto refused =
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another size"));
  const std::unique_ptr<RankTeam> team = StartReadyTeam("well");
  EXPECT_THAT(team->Ask<RankHello>(int64_t{1}, kDeadline), refused);
  EXPECT_THAT(team->Ask<TimedCalls>(std::string("go"), kDeadline), refused);
  EXPECT_EQ(team->Stop(kDeadline).code(), absl::StatusCode::kAborted);
}

TEST(RankTeamTest, EndsWhileAnotherGoesOn) {
  const std::unique_ptr<RankTeam> first = StartReadyTeam("well");
  const std::unique_ptr<RankTeam> second = StartReadyTeam("well");
  EXPECT_THAT(first->Stop(kDeadline), IsOk());
  EXPECT_THAT(TakeTurn(*second, 1), IsOk());
  EXPECT_THAT(second->Stop(kDeadline), IsOk());
}

TEST(RankTeamTest, SaysWhyRanksDidNotMeet) {
  const std::tuple<const char*, absl::StatusCode, const char*> cases[] = {
      {"singletons", absl::StatusCode::kFailedPrecondition,
       "a rank belongs to a group of 1, not of 2 as requested"},
      {"twins", absl::StatusCode::kFailedPrecondition,
       "rank 0 of 2 was not expected"},
      {"mute", absl::StatusCode::kUnavailable, "rank 1 is sorry"}};
  for (const auto& [how, code, why] : cases) {
    EXPECT_THAT(StartTeam(how)->AwaitRanks(kDeadline), StatusIs(code, why));
  }
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

TEST(RankTeamTest, SaysWhichRankFailedOrDiedOrHangs) {
  struct Case {
    const char* how;
    absl::StatusCode code;
    testing::Matcher<std::string> why, end;
    absl::Duration timeout = kDeadline;
  };
  const Case cases[] = {
      {"fails", absl::StatusCode::kAborted, HasSubstr("rank 1: unlucky"),
       testing::_},
      {"dies", absl::StatusCode::kUnavailable,
       HasSubstr("was killed by signal 9 (SIGKILL)"), testing::_},
      {"hangs", absl::StatusCode::kDeadlineExceeded,
       "rank 1: no answer came in time", "the ranks did not end within 50ms",
       absl::Milliseconds(50)}};
  for (const auto& [how, code, why, end, timeout] : cases) {
    const std::unique_ptr<RankTeam> team = StartReadyTeam(how);
    EXPECT_THAT(TakeTurn(*team, 13, timeout), StatusIs(code, why));
    EXPECT_THAT(team->Stop(timeout), StatusIs(absl::StatusCode::kAborted, end));
  }
}

TEST(RankTeamTest, ReportsAProgramThatIsNotThere) {
  absl::StatusOr<std::unique_ptr<RankTeam>> team =
      RankTeam::Start([](const std::string&) {
        return TeamCommand{.argv = {"/absent/program"}};
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

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

constexpr char kReady[] = "echo lockstep: ready 2.1.0 and more; ";

absl::StatusOr<TorchProcess> Start(const std::vector<std::string>& pythons,
                                   absl::Duration timeout = absl::Minutes(1)) {
  return TorchProcess::Start(pythons, "script", absl::Now() + timeout);
}

// Returns a process that is ready, and then runs `script`.
TorchProcess StartReady(const std::string& script) {
  return *Start({MakePython(absl::StrCat(kReady, script))});
}

absl::StatusOr<std::string> Ask(TorchProcess& process, const char* line,
                                absl::Duration timeout = absl::Minutes(1)) {
  return process.Ask(line, absl::Now() + timeout);
}

TEST(PythonsToTryTest, TakesOneThatIsNamedAloneElseTheUsualOnes) {
  EXPECT_THAT(PythonsToTry(""), ElementsAre("python3", "/usr/bin/python3"));
  EXPECT_THAT(PythonsToTry("python3.9"), ElementsAre("python3.9"));
  EXPECT_THAT(PythonsToTry("/opt/python"), ElementsAre("/opt/python"));
  // `bazel run` sets the user's folder.
  ASSERT_EQ(setenv("BUILD_WORKING_DIRECTORY", "/home/user", 1), 0);
  EXPECT_THAT(PythonsToTry("env/bin/python"),
              ElementsAre("/home/user/env/bin/python"));
  ASSERT_EQ(unsetenv("BUILD_WORKING_DIRECTORY"), 0);
}

TEST(TorchProcessTest, RunsTheScriptAndAnswersLinesAmongItsTalk) {
  const std::string python =
      MakePython(absl::StrCat("echo hello; echo warning >&2; ", kReady,
                              "s=$2; while read line; do echo thinking;"
                              "echo lockstep: $s does $line; done"));
  absl::StatusOr<TorchProcess> process = Start({python});
  ASSERT_THAT(process, IsOk());
  EXPECT_EQ(process->name(), absl::StrCat("PyTorch 2.1.0 (", python, ")"));
  EXPECT_EQ(process->version(), "2.1.0");
  EXPECT_EQ(process->remark(), "and more");
  for (const char* line : {"1 2", "3", "4"}) {
    EXPECT_THAT(Ask(*process, line),
                IsOkAndHolds(std::string("script does ") + line));
  }
}

TEST(TorchProcessTest, KeepsAnswersThatCameTogether) {
  TorchProcess process =
      StartReady("printf 'lockstep: a\\nlockstep: \\nlockstep: c\\n'; cat");
  for (const char* answer : {"a", "", "c"}) {
    EXPECT_THAT(Ask(process, "next"), IsOkAndHolds(std::string(answer)));
  }
}

TEST(TorchProcessTest, IsNotFilledByALineWithoutEnd) {
  TorchProcess process =
      StartReady("head -c 1000000 /dev/zero; echo; echo lockstep: done; cat");
  EXPECT_THAT(Ask(process, "1"), IsOkAndHolds("done"));
}

TEST(TorchProcessTest, SaysHowItEnded) {
  const std::pair<const char*, const char*> cases[] = {
      {"read line; echo first; echo its last words; echo; exit 7",
       ": it ended with exit status 7; it said: its last words"},
      {"read line; kill -TERM $$", ": signal 15 ended it"},
      // The process ends before it is told anything, or just then.
      {"", ": it ended with exit status 0"}};
  for (const auto& [script, how] : cases) {
    TorchProcess process = StartReady(script);
    EXPECT_THAT(Ask(process, "1"),
                StatusIs(kUnavailable,
                         AllOf(StartsWith(testing::TempDir()), EndsWith(how))));
    EXPECT_THAT(Ask(process, "2"),
                StatusIs(kUnavailable, EndsWith(": it has ended")));
  }
}

// The deadline has passed already, so that no test has to wait for it.
TEST(TorchProcessTest, EndsAProgramThatDoesNotAnswer) {
  TorchProcess process =
      StartReady("trap '' TERM; while read line; do :; done; sleep 1000");
  EXPECT_THAT(Ask(process, "1", -absl::Seconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       EndsWith(": it did not answer in time")));
  EXPECT_THAT(Ask(process, "2"), StatusIs(kUnavailable, HasSubstr("ended")));
}

// There is always something to read, in lines or not.
TEST(TorchProcessTest, EndsAProgramThatOnlyTalks) {
  for (const char* script : {"yes & yes & yes", "cat /dev/zero"}) {
    for (const absl::Duration patience :
         {-absl::Seconds(1), absl::Milliseconds(100)}) {
      TorchProcess process = StartReady(script);
      EXPECT_THAT(Ask(process, "1", patience),
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           HasSubstr("did not answer in time")))
          << script;
    }
  }
}

TEST(TorchProcessTest, TakesTheFirstThatHasPyTorchOrSaysWhyNone) {
  std::vector<std::string> pythons = {
      "/absent/python", MakePython("echo lockstep: missing No module named x"),
      MakePython("echo no python; exit 3"),
      MakePython("echo lockstep: hello; cat"),
      MakePython(absl::StrCat(kReady, "cat"))};
  EXPECT_THAT(Start(pythons), IsOk());
  pythons.pop_back();
  EXPECT_THAT(
      Start(pythons),
      StatusIs(kUnavailable,
               AllOf(HasSubstr("/absent/python: it ended with exit status 127; "
                               "it said: cannot run it: No such file"),
                     HasSubstr("No module named x; "),
                     HasSubstr("status 3; it said: no python; "),
                     HasSubstr("has an unknown form: hello"))));
}

// All share one deadline: 40 deadlines of half a second would take 20 seconds.
TEST(TorchProcessTest, GivesUpAllThatHangAtOneDeadline) {
  const std::vector<std::string> pythons(40, MakePython("sleep 1000"));
  const absl::Time begin = absl::Now();
  EXPECT_THAT(Start(pythons, absl::Milliseconds(500)),
              StatusIs(kUnavailable, HasSubstr("did not answer in time")));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

}  // namespace
}  // namespace lockstep::benchmarks
