// Tests of processes, of the cores that they may use, and of programs that are
// started and ended.
#include "base/process.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/status_matchers.h"
#include "base/subprocess.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Fields 4 to 21 after the state, with parent 17; then the start time and
// further fields.
constexpr char kFields[] =
    " 17 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 123456789 23 24\n";

TEST(ProcessStatTest, FindsFieldsAfterAnyName) {
  for (const char* name : {"sh", "", "a b", ") R 1 2", "((", ")", "x)\n"}) {
    const std::optional<ProcessStat> stat =
        ParseProcessStat(absl::StrCat("99 (", name, ") Z", kFields));
    ASSERT_TRUE(stat.has_value()) << name;
    EXPECT_EQ(stat->state, 'Z');
    EXPECT_EQ(stat->parent, 17);
    EXPECT_EQ(stat->start_ticks, 123456789u);
    EXPECT_EQ(stat->cpu_ticks, 12 + 13 + 14 + 15);
  }
}

TEST(ProcessStatTest, RejectsWhatLacksANumber) {
  const std::string whole = absl::StrCat("99 (sh) S", kFields);
  const size_t start = whole.find("123456789");
  for (size_t size = 0; size <= start; ++size) {
    EXPECT_FALSE(ParseProcessStat(whole.substr(0, size)).has_value()) << size;
  }
  EXPECT_TRUE(ParseProcessStat(whole.substr(0, start + 9)).has_value());
  // Fields that are not numbers are errors.
  for (const char* field : {" 17 3", "123456789"}) {
    std::string bad = whole;
    bad.replace(bad.find(field), 3, " x ");
    EXPECT_FALSE(ParseProcessStat(bad).has_value()) << bad;
  }
}

TEST(ProcessStatTest, ReadsThisProcessWhateverItsName) {
  prctl(PR_SET_NAME, "a) Z 1 (b");
  const std::optional<ProcessStat> stat = ReadProcessStat(getpid());
  ASSERT_TRUE(stat.has_value());
  EXPECT_EQ(stat->state, 'R');
  EXPECT_EQ(stat->parent, getppid());
  EXPECT_GT(stat->start_ticks, 0u);
}

TEST(ProcessIdentityTest, ThisProcessIsAliveAndStartedBeforeNow) {
  EXPECT_EQ(ThisProcess().pid, getpid());
  EXPECT_EQ(ThisProcess(), ThisProcess());
  EXPECT_TRUE(IsAlive(ThisProcess()));
  // A later process with the same number is a different process.
  ProcessIdentity earlier = ThisProcess();
  --earlier.start_ticks;
  EXPECT_FALSE(IsAlive(earlier));
  const uint64_t now = TicksSinceHostStart();
  EXPECT_LE(ThisProcess().start_ticks, now);
  // The start is recent: the test would have been killed within an hour.
  EXPECT_GT(ThisProcess().start_ticks + 360'000, now);
}

TEST(ProcessIdentityTest, StoppedIsAliveAndZombieIsNotAndThenNothing) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (IsAlive(ThisProcess()) && ThisProcess().pid == getpid()) raise(SIGSTOP);
    _exit(0);
  }
  const ProcessIdentity identity = {child, ReadProcessStat(child)->start_ticks};
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));  // The child now has its own identity.
  EXPECT_TRUE(IsAlive(identity));

  ASSERT_TRUE(SendSignal(child, SIGKILL));
  siginfo_t info;  // WNOWAIT leaves a zombie.
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT),
            0);
  EXPECT_FALSE(IsAlive(identity));
  const std::optional<ProcessStat> ended = ReadProcessStat(child);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->state, 'Z');
  EXPECT_EQ(ended->parent, getpid());
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(IsAlive(identity));
  EXPECT_FALSE(ReadProcessStat(child).has_value());
}

TEST(CoresOfQuotaTest, RoundsUpToWholeCoresAndIsZeroWithoutAQuota) {
  for (const auto& [text, cores] :
       std::vector<std::pair<const char*, int>>{{"200000 100000\n", 2},
                                                {"150000 100000\n", 2},
                                                {"50000 100000\n", 1},
                                                {"100001 100000", 2},
                                                {"", 0},
                                                {"max 100000\n", 0},
                                                {"7", 0},
                                                {"1 2 3", 0},
                                                {"-5 100000", 0},
                                                {"5 0", 0}}) {
    EXPECT_EQ(CoresOfQuota(text), cores) << text;
  }
}

TEST(AffinityCpusTest, FollowsTheAffinity) {
  const std::vector<int> all = AffinityCpus();
  ASSERT_FALSE(all.empty());
  EXPECT_GE(UsableCores(), 1);
  EXPECT_LE(UsableCores(), all.size());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end(), std::greater_equal()),
            all.end());
  ASSERT_TRUE(SetAffinity(std::span(&all.back(), 1)));
  EXPECT_EQ(AffinityCpus(), std::vector<int>{all.back()});
  EXPECT_EQ(UsableCores(), 1);
  ASSERT_TRUE(SetAffinity(all));
  EXPECT_EQ(AffinityCpus(), all);
}

TEST(SetAffinityTest, RefusesCpusThatAreNotThere) {
  const std::vector<int> all = AffinityCpus();
  for (const std::vector<int>& cpus :
       {std::vector<int>{}, {-1}, {(1 << 16) - 1}, {1 << 16}}) {
    errno = 0;
    EXPECT_FALSE(SetAffinity(cpus));
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(AffinityCpus(), all);
  }
}

TEST(UsableCoresTest, JoinsTheCoresOfBoundProcesses) {
  const std::vector<int> all = AffinityCpus();
  std::vector<int> cpus = all;
  cpus.resize(std::min<size_t>(cpus.size(), 4));
  std::vector<pid_t> children;
  for (const int cpu : cpus) {
    // The child inherits the affinity.
    ASSERT_TRUE(SetAffinity(std::span(&cpu, 1)));
    children.push_back(fork());
    while (children.back() == 0) pause();
    EXPECT_EQ(AffinityCpus(children.back()), std::vector<int>{cpu});
    EXPECT_EQ(UsableCores(std::span(&children.back(), 1)), 1);
  }
  ASSERT_TRUE(SetAffinity(all));
  EXPECT_EQ(UsableCores(children),
            std::min<int>(static_cast<int>(cpus.size()), UsableCores()));
  for (const pid_t child : children) {
    ASSERT_TRUE(SendSignal(child, SIGKILL));
    waitpid(child, nullptr, 0);
  }
  EXPECT_EQ(UsableCores(children), 1);
}

// Signal 0 only asks whether a process may be signalled. A broken SendSignal
// that passes these pids on therefore does no harm.
TEST(SendSignalTest, RefusesPidsThatAreNotOneProcess) {
  for (const pid_t pid : {1, 0, -1, -2, -getpid(), INT_MIN}) {
    errno = 0;
    EXPECT_FALSE(SendSignal(pid, 0)) << pid;
    EXPECT_EQ(errno, EINVAL) << pid;
    errno = 0;
    EXPECT_FALSE(SendSignalToGroup(pid, 0)) << pid;
    EXPECT_EQ(errno, EINVAL) << pid;
  }
}

TEST(SendSignalTest, ReachesOneProcessOrItsGroup) {
  for (const bool group : {false, true}) {
    Subprocess process =
        Subprocess::Start({"sh", "-c", "sleep 1000 & echo $!; wait"}).value();
    pid_t child = 0;
    ASSERT_TRUE(
        absl::SimpleAtoi(process.ReadLine(absl::Seconds(60)).value(), &child));
    ASSERT_TRUE(group ? SendSignalToGroup(process.pid(), SIGKILL)
                      : SendSignal(process.pid(), SIGKILL));
    EXPECT_TRUE(AwaitProcessEnd(process.pid(), absl::Seconds(60)));
    EXPECT_EQ(AwaitProcessEnd(
                  child, group ? absl::Seconds(60) : absl::Milliseconds(50)),
              group);
    const pid_t reaped = process.pid();
    process.End();
    EXPECT_TRUE(AwaitProcessEnd(child, absl::Seconds(60)));
    EXPECT_FALSE(SendSignal(reaped, SIGKILL));
    EXPECT_EQ(errno, ESRCH);
  }
}

// A timeout that is longer than any step here takes on a busy machine. Reaching
// it is a failure.
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

// The program writes more than two pipes hold, in an order that would block a
// reader of only one of them.
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
  EXPECT_EQ(Shell("echo $SUBPROCESS_TEST_KEPT ${SUBPROCESS_TEST_LOST-none} "
                  "$SUBPROCESS_TEST_NEW",
                  {.environment = {{"SUBPROCESS_TEST_NEW", "a"},
                                   {"SUBPROCESS_TEST_NEW", "b=c"}},
                   .unset = {"SUBPROCESS_TEST_LOST"}})
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

// The processes write without end, with and without line ends.
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

// Returns whether every process that holds the other end of the pipe ends in
// time.
bool IsHungUp(const OwnedFd& pipe, absl::Duration patience) {
  pollfd end = {.fd = pipe.get(), .events = POLLIN, .revents = 0};
  return poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) ==
         1;
}

// Each process inherits the writing end of a pipe that nobody writes to. The
// pipe is hung up once all of them have ended.
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

TEST(ProcessesTest, AreFoundByAVariableAndAsDescendants) {
  const std::string variable = absl::StrCat("PROCESSES_TEST=", getpid());
  Subprocess process =
      Start("echo ready; sleep 1000; true",
            {.environment = {{"PROCESSES_TEST", absl::StrCat(getpid())}}});
  ASSERT_TRUE(process.AwaitOutput("ready", kPatience));
  EXPECT_THAT(ProcessesWithVariable(variable), Contains(process.pid()));
  EXPECT_THAT(ProcessesWithVariable(variable + "0"), ElementsAre());
  EXPECT_THAT(ProcessesWithVariable("PROCESSES_TEST="), ElementsAre());
  EXPECT_TRUE(DescendsFrom(process.pid(), process.pid()));
  EXPECT_TRUE(DescendsFrom(process.pid(), getpid()));
  EXPECT_FALSE(DescendsFrom(getpid(), process.pid()));
  EXPECT_FALSE(AwaitProcessEnd(process.pid(), absl::ZeroDuration()));
  ASSERT_TRUE(SendSignal(process.pid(), SIGKILL));
  EXPECT_TRUE(AwaitProcessEnd(process.pid(), kPatience));
  EXPECT_THAT(ProcessesWithVariable(variable), Not(Contains(process.pid())));
  const pid_t reaped = process.pid();
  process.End();
  EXPECT_TRUE(AwaitProcessEnd(reaped, absl::ZeroDuration()));
}

}  // namespace
}  // namespace lockstep
