// Programs that answer, fail, fall silent and talk too much.
#include "benchmarks/harness/torch_process.h"

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/fake_python.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

absl::StatusOr<LineWorker> StartShell(const std::string& script) {
  return LineWorker::Start({"sh", "-c", script});
}

absl::StatusOr<std::string> Receive(LineWorker& worker) {
  return worker.Receive(absl::Now() + absl::Seconds(60));
}

TEST(LineWorkerTest, AnswersLinesAmongItsTalk) {
  absl::StatusOr<LineWorker> worker = StartShell(
      "echo hello; echo warning >&2; while read word; do echo thinking;"
      "echo \"lockstep: got $word\"; done");
  ASSERT_THAT(worker, IsOk());
  for (const char* word : {"one", "two", "three"}) {
    ASSERT_THAT(worker->Send(word), IsOk());
    EXPECT_THAT(Receive(*worker), IsOkAndHolds(std::string("got ") + word));
  }
}

TEST(LineWorkerTest, KeepsAnswersThatCameTogether) {
  absl::StatusOr<LineWorker> worker =
      StartShell("printf 'lockstep: a\\nlockstep: \\nlockstep: c\\n'; cat");
  ASSERT_THAT(worker, IsOk());
  for (const char* answer : {"a", "", "c"}) {
    EXPECT_THAT(Receive(*worker), IsOkAndHolds(std::string(answer)));
  }
}

TEST(LineWorkerTest, SaysHowAProgramEnded) {
  absl::StatusOr<LineWorker> worker =
      StartShell("echo first; echo its last words; echo; exit 7");
  ASSERT_THAT(worker, IsOk());
  EXPECT_THAT(Receive(*worker),
              StatusIs(kUnavailable,
                       "it ended with exit status 7; it said: its last words"));
  EXPECT_THAT(Receive(*worker), StatusIs(kUnavailable, "it has ended"));
}

TEST(LineWorkerTest, SaysWhichSignalEndedAProgram) {
  absl::StatusOr<LineWorker> worker = StartShell("kill -TERM $$");
  ASSERT_THAT(worker, IsOk());
  EXPECT_THAT(Receive(*worker), StatusIs(kUnavailable, "signal 15 ended it"));
}

TEST(LineWorkerTest, SaysWhyAProgramCannotRun) {
  absl::StatusOr<LineWorker> worker = LineWorker::Start({"/absent/program"});
  ASSERT_THAT(worker, IsOk());
  EXPECT_THAT(
      Receive(*worker),
      StatusIs(kUnavailable, AllOf(HasSubstr("exit status 127"),
                                   HasSubstr("cannot run it: No such file"))));
}

// A deadline that is over: no test has to wait for it.
TEST(LineWorkerTest, EndsAProgramThatDoesNotAnswer) {
  absl::StatusOr<LineWorker> worker =
      StartShell("trap '' TERM; while read line; do :; done; sleep 1000");
  ASSERT_THAT(worker, IsOk());
  EXPECT_THAT(worker->Receive(absl::Now() - absl::Seconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("did not answer in time")));
  EXPECT_THAT(worker->Send("more"), StatusIs(kUnavailable, HasSubstr("ended")));
}

// There is always something to read, in lines or not.
TEST(LineWorkerTest, EndsAProgramThatOnlyTalks) {
  for (const char* script : {"yes & yes & yes", "cat /dev/zero"}) {
    for (const absl::Duration patience :
         {-absl::Seconds(1), absl::Milliseconds(100)}) {
      absl::StatusOr<LineWorker> worker = StartShell(script);
      ASSERT_THAT(worker, IsOk());
      EXPECT_THAT(worker->Receive(absl::Now() + patience),
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           HasSubstr("did not answer in time")))
          << script;
    }
  }
}

// Whether every process that has the other end of the pipe ends in time.
bool IsHungUp(const OwnedFd& pipe, absl::Duration patience) {
  pollfd end = {.fd = pipe.get(), .events = POLLIN, .revents = 0};
  return poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) ==
         1;
}

// A pipe that nobody writes to, and whose other end they all inherit.
TEST(LineWorkerTest, EndsWhatTheProgramHasStarted) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const OwnedFd reader(ends[0]);
  OwnedFd writer(ends[1]);
  {
    absl::StatusOr<LineWorker> worker =
        StartShell("sleep 1000 & echo lockstep: started; wait");
    writer.Close();
    ASSERT_THAT(worker, IsOk());
    EXPECT_THAT(Receive(*worker), IsOkAndHolds("started"));
    EXPECT_FALSE(IsHungUp(reader, absl::ZeroDuration()));
  }
  EXPECT_TRUE(IsHungUp(reader, absl::Seconds(20)));
}

TEST(LineWorkerTest, IsNotFilledByALineWithoutEnd) {
  absl::StatusOr<LineWorker> worker =
      StartShell("head -c 1000000 /dev/zero; echo; echo lockstep: done; cat");
  ASSERT_THAT(worker, IsOk());
  EXPECT_THAT(Receive(*worker), IsOkAndHolds("done"));
}

TEST(LineWorkerTest, SurvivesSendingToAProgramThatIsGone) {
  absl::StatusOr<LineWorker> worker = StartShell("echo lockstep: bye");
  ASSERT_THAT(worker, IsOk());
  EXPECT_THAT(Receive(*worker), IsOkAndHolds("bye"));
  const absl::Status sent = worker->Send("more");
  if (sent.ok()) {  // It had not ended yet.
    EXPECT_THAT(Receive(*worker),
                StatusIs(kUnavailable, HasSubstr("status 0")));
  } else {
    EXPECT_THAT(sent, StatusIs(kUnavailable, HasSubstr("status 0")));
  }
}

TEST(LineWorkerTest, IsOwnedByTheOneItMovesTo) {
  absl::StatusOr<LineWorker> worker =
      StartShell("while read word; do echo \"lockstep: $word\"; done");
  ASSERT_THAT(worker, IsOk());
  LineWorker moved = *std::move(worker);
  ASSERT_THAT(moved.Send("here"), IsOk());
  EXPECT_THAT(Receive(moved), IsOkAndHolds("here"));
}

// Programs in the place of Python: right, wrong, dead and silent ones.

using ::testing::ElementsAre;

constexpr char kReady[] = "echo lockstep: ready 2.1.0 and more; ";

absl::StatusOr<TorchProcess> Start(const std::vector<std::string>& pythons,
                                   absl::Duration timeout = absl::Minutes(1)) {
  return TorchProcess::Start(pythons, "script", absl::Now() + timeout);
}

absl::Time Later() { return absl::Now() + absl::Minutes(1); }

TEST(PythonsToTryTest, TakesOneThatIsNamedAloneElseTheUsualOnes) {
  EXPECT_THAT(PythonsToTry(""), ElementsAre("python3", "/usr/bin/python3"));
  EXPECT_THAT(PythonsToTry("python3.9"), ElementsAre("python3.9"));
  EXPECT_THAT(PythonsToTry("/opt/python"), ElementsAre("/opt/python"));
  // As `bazel run` says where its user is.
  ASSERT_EQ(setenv("BUILD_WORKING_DIRECTORY", "/home/user", 1), 0);
  EXPECT_THAT(PythonsToTry("env/bin/python"),
              ElementsAre("/home/user/env/bin/python"));
  ASSERT_EQ(unsetenv("BUILD_WORKING_DIRECTORY"), 0);
}

TEST(TorchProcessTest, RunsTheScriptAndAnswers) {
  const std::string python = MakePython(absl::StrCat(
      kReady, "s=$2; while read line; do echo lockstep: $s does $line; done"));
  absl::StatusOr<TorchProcess> process = Start({python});
  ASSERT_THAT(process, IsOk());
  EXPECT_EQ(process->python(), python);
  EXPECT_EQ(process->version(), "2.1.0 and more");
  EXPECT_THAT(process->Ask("1 2", Later()), IsOkAndHolds("script does 1 2"));
  EXPECT_THAT(process->Ask("3", Later()), IsOkAndHolds("script does 3"));
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
                     HasSubstr("not understood: hello"))));
}

// One deadline for all: 40 of half a second each would take 20.
TEST(TorchProcessTest, GivesUpAllThatHangAtOneDeadline) {
  const std::vector<std::string> pythons(40, MakePython("sleep 1000"));
  const absl::Time begin = absl::Now();
  EXPECT_THAT(Start(pythons, absl::Milliseconds(500)),
              StatusIs(kUnavailable, HasSubstr("did not answer in time")));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

TEST(TorchProcessTest, NamesThePythonThatHangsOrDies) {
  const std::string hangs = MakePython(absl::StrCat(kReady, "sleep 1000"));
  absl::StatusOr<TorchProcess> process = Start({hangs});
  ASSERT_THAT(process, IsOk());
  EXPECT_THAT(process->Ask("1", absl::Now() + absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       absl::StrCat(hangs, ": it did not answer in time")));
  const std::string dies =
      MakePython(absl::StrCat(kReady, "read line; echo MemoryError; exit 1"));
  absl::StatusOr<TorchProcess> other = Start({dies});
  ASSERT_THAT(other, IsOk());
  EXPECT_THAT(other->Ask("1", Later()),
              StatusIs(kUnavailable,
                       AllOf(HasSubstr(dies), HasSubstr(": MemoryError"))));
}

}  // namespace
}  // namespace lockstep::benchmarks
