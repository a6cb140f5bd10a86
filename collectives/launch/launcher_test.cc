// Launch() as a caller in the same process sees it. What the command `launch`
// shows from outside is in launch_test.cc.
#include "collectives/launch/launcher.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/launch/launch_summary.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> Shell(const std::string& script) {
  return {"sh", "-c", script};
}

void HandleNothing(int) {}

TEST(LauncherTest, ReportsEveryRank) {
  const absl::StatusOr<LaunchSummary> summary =
      Launch({.nproc = 8, .argv = Shell("true")});
  ASSERT_THAT(summary, IsOk());
  ASSERT_EQ(summary->ranks.size(), 8);
  std::vector<bool> seen(8);
  for (const RankOutcome& outcome : summary->ranks) {
    seen[outcome.rank] = true;
    EXPECT_GT(outcome.pid, 0);
    EXPECT_EQ(outcome.wait_status, 0);
    EXPECT_FALSE(outcome.stopped);
  }
  EXPECT_EQ(seen, std::vector<bool>(8, true));
  EXPECT_EQ(summary->received_signal, 0);
}

TEST(LauncherTest, SetsEnvironment) {
  LaunchOptions options = {
      .nproc = 2,
      .argv = Shell("[ \"$COLOUR\" = 'dark red' ] && [ $WORLD_SIZE = 2 ]")};
  options.environment = {{"COLOUR", "dark red"}, {"WORLD_SIZE", "7"}};
  const absl::StatusOr<LaunchSummary> summary = Launch(options);
  ASSERT_THAT(summary, IsOk());
  EXPECT_EQ(ExitStatus(*summary), 0);
}

TEST(LauncherTest, ListsOutcomesInOrderOfEnd) {
  // Rank 0 ends when rank 1 has failed: its SIGTERM comes after that.
  const absl::StatusOr<LaunchSummary> summary = Launch(
      {.nproc = 2,
       .argv = Shell("[ $RANK = 1 ] && exit 4; while :; do sleep 1000; done"),
       .grace = {.report = absl::ZeroDuration()}});
  ASSERT_THAT(summary, IsOk());
  ASSERT_EQ(summary->ranks.size(), 2);
  EXPECT_EQ(summary->ranks[0].rank, 1);
  EXPECT_FALSE(summary->ranks[0].stopped);
  EXPECT_TRUE(summary->ranks[1].stopped);
  EXPECT_EQ(ExitStatus(*summary), 4);
}

TEST(LauncherTest, RejectsBadOptions) {
  EXPECT_THAT(
      Launch({.nproc = 0, .argv = Shell("true")}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nproc is 0")));
  EXPECT_THAT(Launch({.nproc = 4097, .argv = Shell("true")}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("nproc is 4097; it must be at most 4096")));
  EXPECT_THAT(
      Launch(
          {.nproc = 1, .argv = Shell("true"), .timeout = absl::ZeroDuration()}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("the timeout is 0")));
  EXPECT_THAT(Launch({.nproc = 1}), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("no command")));
}

TEST(LauncherTest, NamesCommandThatCannotRun) {
  EXPECT_THAT(Launch({.nproc = 2, .argv = {"lockstep-no-such-command"}}),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("lockstep-no-such-command")));
  EXPECT_THAT(
      Launch({.nproc = 2, .argv = {"/"}}),
      StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("\"/\"")));
}

TEST(LauncherTest, GraceAfterSignalEndsInKill) {
  const absl::StatusOr<LaunchSummary> summary =
      Launch({.nproc = 1,
              .argv = Shell(absl::StrCat("trap '' TERM; kill -TERM ", getpid(),
                                         "; while :; do sleep 1000; done")),
              .grace = {.after_signal = absl::Milliseconds(100)}});
  ASSERT_THAT(summary, IsOk());
  EXPECT_EQ(summary->received_signal, SIGTERM);
  EXPECT_EQ(ExitStatus(*summary), 128 + SIGTERM);
  ASSERT_EQ(summary->ranks.size(), 1);
  EXPECT_TRUE(summary->ranks[0].stopped);
  EXPECT_EQ(summary->ranks[0].wait_status, SIGKILL);
}

TEST(LauncherTest, EndsRanksWhoseTimeIsUp) {
  ::signal(SIGTERM, SIG_IGN);  // So the ranks ignore it too, from the start.
  const absl::StatusOr<LaunchSummary> summary =
      Launch({.nproc = 2,
              .argv = Shell("setsid sleep 1000 & while :; do sleep 1000; done"),
              .grace = {.terminate = absl::Milliseconds(100)},
              .timeout = absl::Milliseconds(200)});
  ::signal(SIGTERM, SIG_DFL);
  ASSERT_THAT(summary, IsOk());
  EXPECT_EQ(summary->timed_out, absl::Milliseconds(200));
  EXPECT_EQ(ExitStatus(*summary), 124);
  ASSERT_EQ(summary->ranks.size(), 2);
  for (const RankOutcome& outcome : summary->ranks) {
    EXPECT_TRUE(outcome.stopped);
    EXPECT_EQ(outcome.wait_status, SIGKILL);
    EXPECT_GE(outcome.after, absl::Milliseconds(300));
  }
  EXPECT_EQ(waitpid(-1, nullptr, 0), -1);  // Nothing is left.
}

TEST(LauncherTest, AFailureBeforeTheTimeIsUpIsAFailure) {
  const absl::StatusOr<LaunchSummary> summary =
      Launch({.nproc = 1, .argv = Shell("exit 3"), .timeout = absl::Hours(1)});
  ASSERT_THAT(summary, IsOk());
  EXPECT_FALSE(summary->timed_out.has_value());
  EXPECT_EQ(ExitStatus(*summary), 3);
}

TEST(LauncherTest, KeepsTheEndOfTheOutput) {
  const absl::StatusOr<LaunchSummary> summary =
      Launch({.nproc = 2,
              .argv = Shell("head -c 300000 /dev/zero; echo; echo rank $RANK; "
                            "printf end >&2"),
              .keep_output_bytes = 11});
  ASSERT_THAT(summary, IsOk());
  ASSERT_EQ(summary->kept_output.size(), 2);
  for (int rank = 0; rank < 2; ++rank) {
    // The two streams come in either order.
    EXPECT_THAT(
        summary->kept_output[rank],
        testing::AnyOf(absl::StrCat("\nrank ", rank, "\nend"),
                       testing::EndsWith(absl::StrCat("\nrank ", rank, "\n"))));
    EXPECT_EQ(summary->kept_output[rank].size(), 11);
  }
}

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

TEST(LauncherTest, LeavesCallerAsItWas) {
  struct sigaction handler = {};
  handler.sa_handler = HandleNothing;
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  const std::initializer_list<int> kSignals = {
      SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE, SIGCHLD};
  for (const int signal : kSignals) sigaction(signal, &handler, nullptr);
  sigaction(SIGUSR2, &ignore, nullptr);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR1);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  const int descriptors = OpenDescriptors();

  ASSERT_THAT(Launch({.nproc = 2, .argv = Shell("exit 1")}), IsOk());

  EXPECT_EQ(OpenDescriptors(), descriptors);
  for (const int signal : kSignals) {
    struct sigaction now;
    sigaction(signal, nullptr, &now);
    EXPECT_EQ(now.sa_handler, signal == SIGUSR2 ? SIG_IGN : HandleNothing)
        << signal;
    sigset_t mask_now;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask_now);
    EXPECT_EQ(sigismember(&mask_now, signal), signal == SIGUSR1) << signal;
  }
  int subreaper = -1;
  prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
  EXPECT_EQ(subreaper, 0);
  for (const int signal : kSignals) ::signal(signal, SIG_DFL);
  sigemptyset(&mask);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
}

TEST(LauncherTest, SurvivesSupervisorAndSparesEarlierChildren) {
  const pid_t earlier = fork();
  if (earlier == 0) {
    while (true) pause();
  }
  EXPECT_THAT(
      Launch({.nproc = 2, .argv = Shell("setsid sleep 1000 & kill -9 $PPID")}),
      StatusIs(absl::StatusCode::kAborted,
               AllOf(HasSubstr("supervisor"), HasSubstr("9 (SIGKILL)"))));
  EXPECT_EQ(waitpid(earlier, nullptr, WNOHANG), 0);  // It lives.
  kill(earlier, SIGKILL);
  EXPECT_EQ(waitpid(earlier, nullptr, 0), earlier);
  EXPECT_EQ(waitpid(-1, nullptr, 0), -1);  // Nothing else is left.
}

}  // namespace
}  // namespace lockstep
