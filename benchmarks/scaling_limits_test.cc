// The sentences, whole, on made-up numbers.
#include "benchmarks/scaling_limits.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// One configuration with the given parts of a step, in milliseconds.
MeasuredConfiguration Measured(Configuration configuration, StepParts ms,
                               double imbalance = 0) {
  RoundSample round;
  round.parts = {.compute = 1e-3 * ms.compute,
                 .exposed_communication = 1e-3 * ms.exposed_communication,
                 .data_wait = 1e-3 * ms.data_wait,
                 .rest = 1e-3 * ms.rest};
  round.imbalance = imbalance;
  round.step_seconds = {round.parts.Sum()};
  round.images_per_second =
      static_cast<double>(configuration.global_batch) / round.parts.Sum();
  return {configuration, {round}};
}

TEST(DescribeLimitsTest, NamesWhatStrongScalingLosesWorstFirst) {
  const ModeReport report = DeriveMode(
      ScalingMode::kStrong,
      {Measured({1, 256}, {.compute = 40}),
       Measured({2, 256}, {.compute = 22, .exposed_communication = 3})},
      2);
  EXPECT_EQ(
      DescribeLimits(report, 2),
      "At 2 ranks, strong scaling reaches 1.60 times the images/s of 1 rank: "
      "80% "
      "of ideal. The 20% of a step that is lost: 12% exposed communication "
      "(3.00 "
      "ms a step); 8% compute (a rank's 128 images take 55% of the time of 256 "
      "at 1 rank, not 50%).");
}

TEST(DescribeLimitsTest, NamesWhatWeakScalingLosesAndGains) {
  const ModeReport report = DeriveMode(
      ScalingMode::kWeak,
      {Measured({1, 256}, {.compute = 36, .data_wait = 2, .rest = 2}),
       Measured({2, 512}, {.compute = 45, .data_wait = 2, .rest = 3}),
       Measured({4, 1024}, {.compute = 49, .data_wait = 1, .rest = 0})},
      4);
  EXPECT_EQ(
      DescribeLimits(report, 4),
      "At 4 ranks, weak scaling reaches 3.20 times the images/s of 1 rank: 80% "
      "of ideal. The 20% of a step that is lost: 26% compute (a rank's 256 "
      "images "
      "take 1.36 times as long as at 1 rank); less a gain of 2% data wait "
      "(1.00 ms a step); 4% the rest of the step (0.00 ms a step).");
}

TEST(DescribeLimitsTest, SaysWhenNothingIsLost) {
  const ModeReport report = DeriveMode(ScalingMode::kWeak,
                                       {Measured({1, 256}, {.compute = 40}),
                                        Measured({2, 512}, {.compute = 40.1})},
                                       2);
  EXPECT_THAT(DescribeLimits(report, 2),
              EndsWith("100% of ideal. Nothing limits it here."));
}

TEST(DescribeLimitsTest, TalksOfTheLargestThatHasACoreForEachRank) {
  const ModeReport report = DeriveMode(
      ScalingMode::kStrong,
      {Measured({1, 64}, {.compute = 40}), Measured({2, 64}, {.compute = 25}),
       Measured({4, 64}, {.compute = 30})},
      2);
  EXPECT_THAT(DescribeLimits(report, 2), StartsWith("At 2 ranks, "));
  EXPECT_THAT(DescribeLimits(report, 2), Not(HasSubstr("share")));
}

TEST(DescribeLimitsTest, SaysThatRanksShareCores) {
  const ModeReport report = DeriveMode(
      ScalingMode::kStrong,
      {Measured({1, 64}, {.compute = 40}), Measured({2, 64}, {.compute = 40})},
      1);
  EXPECT_THAT(DescribeLimits(report, 1),
              EndsWith("Its ranks share 1 core, which alone keeps it from "
                       "scaling."));
}

TEST(DescribeLimitsTest, SaysThatOneWorldSizeIsNotEnough) {
  const ModeReport report =
      DeriveMode(ScalingMode::kStrong, {Measured({1, 64}, {.compute = 40})}, 1);
  EXPECT_EQ(DescribeLimits(report, 1),
            "One world size alone says nothing about scaling.");
}

TEST(DescribeLimitsTest, ReportsImbalanceAndRoundsThatDiffer) {
  MeasuredConfiguration two =
      Measured({2, 64}, {.compute = 20, .exposed_communication = 2},
               /*imbalance=*/0.07);
  two.rounds.push_back(two.rounds[0]);
  two.rounds.push_back(two.rounds[0]);
  two.rounds[1].images_per_second *= 0.75;
  const ModeReport report = DeriveMode(
      ScalingMode::kStrong, {Measured({1, 64}, {.compute = 40}), two}, 2);
  EXPECT_THAT(DescribeLimits(report, 2),
              EndsWith("The slowest rank of a step computes 7% longer than the "
                       "mean; waiting for it is up to 1.40 ms of the 2.00 ms "
                       "of exposed communication. Rounds of one configuration "
                       "differ by up to 25%: "
                       "the machine was not quiet, so read small differences "
                       "with care."));
}

TEST(DescribeLimitsTest, BlamesOtherWorkForTheCoresItTook) {
  MeasuredConfiguration one = Measured({1, 64}, {.compute = 40});
  MeasuredConfiguration two = Measured({2, 64}, {.compute = 30});
  one.rounds[0].kept_waiting = 0.02;
  two.rounds[0].kept_waiting = 0.25;
  ModeReport report = DeriveMode(ScalingMode::kStrong, {one, two}, 2);
  EXPECT_THAT(
      DescribeLimits(report, 2),
      EndsWith("The cores were busy otherwise (with the ranks' own "
               "communication threads, or with other programs): ranks with "
               "something to do did not run 25% of the time (2% at 1 rank)."));
  two.rounds[0].kept_waiting = 0.04;
  report = DeriveMode(ScalingMode::kStrong, {one, two}, 2);
  EXPECT_THAT(DescribeLimits(report, 2), Not(HasSubstr("busy otherwise")));
}

TEST(DescribeLimitsTest, BlamesImbalanceForNoMoreThanWasExposed) {
  const ModeReport report =
      DeriveMode(ScalingMode::kStrong,
                 {Measured({1, 64}, {.compute = 40}),
                  Measured({2, 64}, {.compute = 20, .exposed_communication = 1},
                           /*imbalance=*/0.5)},
                 2);
  EXPECT_THAT(DescribeLimits(report, 2),
              HasSubstr("up to 1.00 ms of the 1.00 ms"));
}

}  // namespace
}  // namespace lockstep
