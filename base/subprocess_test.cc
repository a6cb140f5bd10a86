#include "base/subprocess.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Longer than anything here takes on a busy machine: reaching it is a failure.
constexpr absl::Duration kPatience = absl::Seconds(60);

SubprocessResult Shell(const std::string& script,
                       const SubprocessOptions& options = {}) {
  return RunSubprocess({"sh", "-c", script}, kPatience, options);
}

Subprocess Start(const std::string& script,
                 const SubprocessOptions& options = {}) {
  return Subprocess::Start({"sh", "-c", script}, options).value();
}

TEST(SubprocessTest, SaysHowAProgramEnded) {
  EXPECT_EQ(Shell("exit 0").exit_status, 0);
  EXPECT_EQ(Shell("exit 7").exit_status, 7);
  EXPECT_EQ(Shell("kill -TERM $$").exit_status, 128 + SIGTERM);
  EXPECT_EQ(DescribeEnd(7), "it ended with exit status 7");
  EXPECT_EQ(DescribeEnd(128 + SIGTERM), "signal 15 ended it");
}

TEST(SubprocessTest, SaysWhyAProgramCannotRun) {
  const SubprocessResult result = RunSubprocess({"/absent/program"}, kPatience);
  EXPECT_EQ(result.exit_status, 127);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, StartsWith("cannot run it: No such file"));
}

TEST(SubprocessTest, KeepsOutputAndErrorApartOrTogether) {
  const std::string script = "echo out; echo err >&2; printf 'no end'";
  SubprocessResult result = Shell(script);
  EXPECT_EQ(result.out, "out\nno end");
  EXPECT_EQ(result.err, "err\n");
  result = Shell(script, {.merge_error = true});
  EXPECT_EQ(result.out, "out\nerr\nno end");
  EXPECT_EQ(result.err, "");
}

// More than two pipes hold, in turns that would block a reader of one of them.
TEST(SubprocessTest, ReadsBothStreamsAsTheyFill) {
  const SubprocessResult result = Shell(
      "head -c 1000000 /dev/zero >&2; head -c 1000000 /dev/zero;"
      "head -c 1000000 /dev/zero >&2");
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_EQ(result.out.size(), 1000000u);
  EXPECT_EQ(result.err.size(), 2000000u);
}

TEST(SubprocessTest, ReadsNothingUnlessItIsWrittenTo) {
  EXPECT_EQ(Shell("cat").exit_status, 0);
  Subprocess cat = Start("while read line; do echo \"got $line\"; done",
                         {.writes_input = true});
  for (const char* word : {"one", "", "three"}) {
    ASSERT_THAT(cat.WriteLine(word), IsOk());
    EXPECT_THAT(cat.ReadLine(kPatience),
                IsOkAndHolds(absl::StrCat("got ", word)));
  }
  cat.End();
  EXPECT_THAT(cat.WriteLine("more"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no more")));
}

TEST(SubprocessTest, SetsAndRemovesVariables) {
  setenv("SUBPROCESS_TEST_KEPT", "kept", 1);
  setenv("SUBPROCESS_TEST_LOST", "lost", 1);
  SubprocessOptions options;
  options.environment = {{"SUBPROCESS_TEST_NEW", "a"},
                         {"SUBPROCESS_TEST_NEW", "b=c"}};
  options.unset = {"SUBPROCESS_TEST_LOST"};
  EXPECT_EQ(Shell("echo $SUBPROCESS_TEST_KEPT ${SUBPROCESS_TEST_LOST-none} "
                  "$SUBPROCESS_TEST_NEW",
                  options)
                .out,
            "kept none b=c\n");
}

TEST(SubprocessTest, TakesLinesAndLeavesTheRest) {
  Subprocess process = Start("printf 'one\\n\\nthree\\nrest'");
  for (const char* line : {"one", "", "three"}) {
    EXPECT_THAT(process.ReadLine(kPatience), IsOkAndHolds(std::string(line)));
  }
  EXPECT_THAT(process.ReadLine(kPatience),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("ended")));
  EXPECT_EQ(process.Wait(kPatience), 0);
  EXPECT_EQ(process.out(), "rest");
}

TEST(SubprocessTest, FindsTextAsItComes) {
  Subprocess process = Start("printf 'not '; printf 'ready'; exec sleep 1000");
  EXPECT_TRUE(process.AwaitOutput("ready", kPatience));
  EXPECT_FALSE(process.AwaitOutput("more", absl::Milliseconds(1)));
  EXPECT_EQ(process.Wait(absl::ZeroDuration()), Subprocess::kStillRunning);
  EXPECT_EQ(process.End(), 128 + SIGKILL);
  EXPECT_EQ(process.End(), 128 + SIGKILL);
  EXPECT_FALSE(Start("echo other").AwaitOutput("ready", kPatience));
}

// There is always something to read, in lines or not.
TEST(SubprocessTest, KeepsDeadlinesHoweverMuchIsWritten) {
  for (const char* script : {"yes & yes & yes", "cat /dev/zero"}) {
    for (const absl::Duration patience :
         {-absl::Seconds(1), absl::Milliseconds(50)}) {
      Subprocess process = Start(script);
      EXPECT_EQ(process.Wait(patience), Subprocess::kStillRunning) << script;
      EXPECT_FALSE(process.AwaitOutput("none", patience)) << script;
    }
  }
  EXPECT_THAT(Start("cat /dev/zero").ReadLine(absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("line")));
  EXPECT_EQ(RunSubprocess({"yes"}, absl::Milliseconds(50)).exit_status,
            Subprocess::kStillRunning);
}

TEST(SubprocessTest, AReaderThatGoesAwayIsNoticed) {
  Subprocess process = Start("exec yes");
  ASSERT_THAT(process.ReadLine(kPatience), IsOkAndHolds("y"));
  process.CloseOutput();
  EXPECT_EQ(process.Wait(kPatience), 128 + SIGPIPE);
}

// Whether every process that has the other end of the pipe ends in time.
bool IsHungUp(const OwnedFd& pipe, absl::Duration patience) {
  pollfd end = {.fd = pipe.get(), .events = POLLIN, .revents = 0};
  return poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) ==
         1;
}

// A pipe that nobody writes to, and whose other end they all inherit.
TEST(SubprocessTest, EndsWhatTheProgramHasStarted) {
  for (const char* script : {"sleep 1000 & echo started; wait",
                             "sleep 1000 > /dev/null & echo started"}) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const OwnedFd reader(ends[0]);
    OwnedFd writer(ends[1]);
    {
      Subprocess process = Start(script);
      writer.Close();
      EXPECT_THAT(process.ReadLine(kPatience), IsOkAndHolds("started"));
      EXPECT_FALSE(IsHungUp(reader, absl::ZeroDuration()));
    }
    EXPECT_TRUE(IsHungUp(reader, kPatience)) << script;
  }
}

TEST(SubprocessTest, MovesWithItsProcess) {
  Subprocess first = Start("read line; exit 3", {.writes_input = true});
  Subprocess process(std::move(first));
  EXPECT_EQ(process.Wait(absl::ZeroDuration()), Subprocess::kStillRunning);
  ASSERT_THAT(process.WriteLine("go on"), IsOk());
  EXPECT_EQ(process.Wait(kPatience), 3);
}

TEST(ProcessesTest, AreFoundByAVariableAndAsDescendants) {
  const std::string variable = absl::StrCat("PROCESSES_TEST=", getpid());
  SubprocessOptions options;
  options.environment = {{"PROCESSES_TEST", absl::StrCat(getpid())}};
  Subprocess process = Start("echo ready; sleep 1000; true", options);
  ASSERT_TRUE(process.AwaitOutput("ready", kPatience));
  EXPECT_THAT(ProcessesWithVariable(variable), Contains(process.pid()));
  EXPECT_THAT(ProcessesWithVariable(variable + "0"), ElementsAre());
  EXPECT_THAT(ProcessesWithVariable("PROCESSES_TEST="), ElementsAre());
  EXPECT_TRUE(DescendsFrom(process.pid(), process.pid()));
  EXPECT_TRUE(DescendsFrom(process.pid(), getpid()));
  EXPECT_FALSE(DescendsFrom(getpid(), process.pid()));
  EXPECT_FALSE(AwaitProcessEnd(process.pid(), absl::ZeroDuration()));
  kill(process.pid(), SIGKILL);
  EXPECT_TRUE(AwaitProcessEnd(process.pid(), kPatience));
  EXPECT_THAT(ProcessesWithVariable(variable), Not(Contains(process.pid())));
}

}  // namespace
}  // namespace lockstep
