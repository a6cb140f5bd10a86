#include "collectives/launch/launch_summary.h"

#include <signal.h>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int Exited(int status) { return status << 8; }

TEST(LaunchSummaryTest, SuccessIsSilent) {
  const LaunchSummary summary = {
      .ranks = {{.rank = 1, .pid = 11, .wait_status = Exited(0)},
                {.rank = 0, .pid = 10, .wait_status = Exited(0)}}};
  EXPECT_FALSE(FirstFailure(summary).has_value());
  EXPECT_EQ(ExitStatus(summary), 0);
  EXPECT_EQ(FormatSummary(summary), "");
}

TEST(LaunchSummaryTest, NamesKilledRank) {
  const LaunchSummary summary = {
      .ranks = {
          {.rank = 1, .pid = 4242, .wait_status = SIGKILL},
          {.rank = 0, .pid = 10, .wait_status = SIGTERM, .stopped = true}}};
  EXPECT_EQ(FirstFailure(summary)->rank, 1);
  EXPECT_EQ(ExitStatus(summary), 137);
  EXPECT_EQ(FormatSummary(summary),
            "lockstep: rank 1 (pid 4242) was killed by signal 9 (SIGKILL); "
            "rank 0 was stopped.");
}

TEST(LaunchSummaryTest, FirstFailureDecides) {
  const LaunchSummary summary = {
      .ranks = {
          {.rank = 2, .pid = 12, .wait_status = Exited(0)},
          {.rank = 1, .pid = 11, .wait_status = Exited(3)},
          {.rank = 4, .pid = 14, .wait_status = Exited(1)},
          {.rank = 3, .pid = 13, .wait_status = SIGKILL, .stopped = true},
          {.rank = 0, .pid = 10, .wait_status = SIGTERM, .stopped = true}}};
  EXPECT_EQ(ExitStatus(summary), 3);
  EXPECT_EQ(FormatSummary(summary),
            "lockstep: rank 1 (pid 11) exited with status 3; rank 4 (pid 14) "
            "exited with status 1; ranks 0, 3 were stopped.");
}

TEST(LaunchSummaryTest, SignalToLauncherDecidesIfNoRankFailedBefore) {
  LaunchSummary summary = {
      .ranks =
          {{.rank = 0, .pid = 10, .wait_status = SIGTERM, .stopped = true},
           {.rank = 1, .pid = 11, .wait_status = Exited(0), .stopped = true}},
      .received_signal = SIGTERM};
  EXPECT_EQ(ExitStatus(summary), 143);
  EXPECT_EQ(FormatSummary(summary),
            "lockstep: the launcher received signal 15 (SIGTERM); ranks 0, 1 "
            "were stopped.");
  summary.ranks[0].wait_status = Exited(0);
  EXPECT_EQ(ExitStatus(summary), 0);
  EXPECT_EQ(FormatSummary(summary), "");
}

}  // namespace
}  // namespace lockstep
