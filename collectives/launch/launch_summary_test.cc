#include "collectives/launch/launch_summary.h"

#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::StartsWith;

constexpr int Exited(int status) { return status << 8; }

TEST(LaunchSummaryTest, SuccessIsSilent) {
  const LaunchSummary summary = {
      .ranks = {{.rank = 1, .pid = 11, .wait_status = Exited(0)},
                {.rank = 0, .pid = 10, .wait_status = Exited(0)}}};
  EXPECT_FALSE(FirstFailure(summary).has_value());
  EXPECT_EQ(ExitStatus(summary), 0);
  EXPECT_EQ(FormatSummary(summary), "");
  EXPECT_EQ(DescribeFailure(summary), "");
}

TEST(LaunchSummaryTest, NamesKilledRank) {
  const LaunchSummary summary = {
      .ranks = {
          {.rank = 1,
           .pid = 4242,
           .wait_status = SIGKILL,
           .after = absl::Milliseconds(12345)},
          {.rank = 0, .pid = 10, .wait_status = SIGTERM, .stopped = true}}};
  EXPECT_EQ(FirstFailure(summary)->rank, 1);
  EXPECT_EQ(ExitStatus(summary), 137);
  EXPECT_EQ(FormatSummary(summary),
            "lockstep: rank 1 (pid 4242) was killed by signal 9 (SIGKILL) "
            "after 12.3 s; rank 0 was stopped.");
}

TEST(LaunchSummaryTest, SaysThatTheTimeWasUp) {
  const LaunchSummary summary = {
      .ranks = {{.rank = 1, .pid = 11, .wait_status = 0},
                {.rank = 2, .pid = 12, .wait_status = SIGKILL, .stopped = true},
                {.rank = 0, .pid = 10, .wait_status = 0, .stopped = true}},
      .timed_out = absl::Seconds(90)};
  EXPECT_FALSE(FirstFailure(summary).has_value());
  EXPECT_EQ(ExitStatus(summary), 124);
  EXPECT_EQ(DescribeFailure(summary),
            "the time limit of 90.0 s was over; ranks 0, 2 were stopped; 1 "
            "rank ended well");
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
  EXPECT_EQ(
      FormatSummary(summary),
      "lockstep: rank 1 (pid 11) exited with status 3 after 0.0 s; rank 4 "
      "failed after it;\n"
      "lockstep: ranks 0, 3 were stopped; 1 rank ended well.");
  EXPECT_EQ(DescribeFailure(summary),
            "rank 1 (pid 11) exited with status 3 after 0.0 s; rank 4 failed "
            "after it; ranks 0, 3 were stopped; 1 rank ended well");
}

TEST(LaunchSummaryTest, StaysWithinHundredColumns) {
  // The worst: gaps everywhere, the longest numbers, every part.
  constexpr int kRanks = 4000;
  LaunchSummary summary = {.received_signal = SIGVTALRM};
  for (int rank = 1000; rank < 1000 + kRanks; ++rank) {
    RankOutcome outcome = {
        .rank = rank, .pid = 4194304, .after = 1000 * absl::Hours(24)};
    outcome.wait_status = rank % 4 == 3 ? Exited(0) : SIGVTALRM;
    outcome.stopped = rank % 4 == 1;
    summary.ranks.push_back(outcome);
  }
  const std::vector<std::string> lines =
      absl::StrSplit(FormatSummary(summary), '\n');
  for (const std::string& line : lines) {
    EXPECT_LE(line.size(), 100) << line;
    EXPECT_THAT(line, StartsWith("lockstep: "));
  }
  EXPECT_EQ(lines.size(), 4u);
}

TEST(LaunchSummaryTest, FormatsElapsedTime) {
  EXPECT_EQ(FormatElapsed(absl::ZeroDuration()), "0.0 s");
  EXPECT_EQ(FormatElapsed(absl::Milliseconds(119940)), "119.9 s");
  EXPECT_EQ(FormatElapsed(absl::Seconds(120.7)), "2m");
  EXPECT_EQ(FormatElapsed(absl::Seconds(2 * 3600 + 13 * 60 + 5)), "2h13m5s");
}

TEST(LaunchSummaryTest, ShortensListsOfRanks) {
  EXPECT_EQ(FormatRanks({3}), "rank 3");
  EXPECT_EQ(FormatRanks({1, 0}), "ranks 0, 1");
  EXPECT_EQ(FormatRanks({2, 0, 1}), "ranks 0-2");
  EXPECT_EQ(FormatRanks({0, 2, 3, 4, 5, 9}), "ranks 0, 2-5, 9");
  EXPECT_EQ(FormatRanks({0, 2, 4, 6, 8, 10}), "ranks 0, 2, 4, 6, 8, 10");
  EXPECT_EQ(FormatRanks({0, 2, 4, 6, 8, 10, 12, 13}),
            "ranks 0, 2, 4, 6, 8, 10 and 2 more");
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
