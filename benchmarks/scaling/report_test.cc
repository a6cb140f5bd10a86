// The formulas and the sentences, on numbers made up so that they come out
// exactly.
#include "benchmarks/scaling/report.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

// A round with one step of the given parts, in seconds.
RoundSample Round(double global_batch, StepParts parts) {
  return {.images_per_second = global_batch / parts.Sum(),
          .parts = parts,
          .step_seconds = {parts.Sum()},
          .loss = 1};
}

MeasuredConfiguration OneRound(Configuration configuration, StepParts parts) {
  return {configuration,
          {Round(static_cast<double>(configuration.global_batch), parts)}};
}

TEST(DeriveModeTest, StrongScalingLosesWhatItsPartsLose) {
  const ModeReport report = DeriveMode(
      ScalingMode::kStrong,
      {OneRound({1, 64}, {.compute = 3, .data_wait = 1}),
       OneRound(
           {2, 64},
           {.compute = 2, .exposed_communication = 0.75, .data_wait = 0.5})},
      /*cores=*/2);
  const ConfigurationReport& one = report.configurations[0];
  EXPECT_EQ(one.images_per_second, 16);
  EXPECT_EQ(one.speedup, 1);
  EXPECT_EQ(one.efficiency, 1);
  EXPECT_EQ(one.lost.Sum(), 0);

  const ConfigurationReport& two = report.configurations[1];
  EXPECT_DOUBLE_EQ(two.speedup, 4 / 3.25);
  EXPECT_DOUBLE_EQ(two.efficiency, 2 / 3.25);
  // Ideal: half of each part.
  EXPECT_DOUBLE_EQ(two.lost.compute, 0.5 / 3.25);
  EXPECT_DOUBLE_EQ(two.lost.exposed_communication, 0.75 / 3.25);
  EXPECT_DOUBLE_EQ(two.lost.data_wait, 0);
  EXPECT_DOUBLE_EQ(two.lost.Sum(), 1 - two.efficiency);
}

TEST(DeriveModeTest, WeakScalingComparesEqualWorkOfARank) {
  const ModeReport report = DeriveMode(
      ScalingMode::kWeak,
      {OneRound({1, 64}, {.compute = 4}),
       OneRound({4, 256}, {.compute = 4.5, .exposed_communication = 0.5})},
      /*cores=*/4);
  const ConfigurationReport& four = report.configurations[1];
  EXPECT_DOUBLE_EQ(four.speedup, 3.2);     // 51.2 / 16.
  EXPECT_DOUBLE_EQ(four.efficiency, 0.8);  // 4 / 5.
  EXPECT_DOUBLE_EQ(four.lost.compute, 0.1);
  EXPECT_DOUBLE_EQ(four.lost.exposed_communication, 0.1);
}

TEST(DeriveModeTest, WithoutOneRankComparesWithTheSmallest) {
  const ModeReport report = DeriveMode(
      ScalingMode::kStrong,
      {OneRound({2, 64}, {.compute = 4}), OneRound({8, 64}, {.compute = 2})},
      /*cores=*/8);
  EXPECT_EQ(report.baseline().world_size(), 2);
  EXPECT_EQ(report.configurations[0].efficiency, 1);
  EXPECT_EQ(report.configurations[1].speedup, 2);
  EXPECT_EQ(report.configurations[1].efficiency, 0.5);
  EXPECT_EQ(report.configurations[1].lost.compute, 0.5);
}

TEST(DeriveModeTest, SuperlinearScalingLosesLessThanNothing) {
  const ModeReport report = DeriveMode(
      ScalingMode::kStrong,
      {OneRound({1, 64}, {.compute = 4}), OneRound({2, 64}, {.compute = 1.6})},
      /*cores=*/2);
  EXPECT_DOUBLE_EQ(report.configurations[1].efficiency, 1.25);
  EXPECT_DOUBLE_EQ(report.configurations[1].lost.compute, -0.25);
}

TEST(DeriveModeTest, TakesTheMedianRoundAndTheStepsOfAll) {
  MeasuredConfiguration measured = {{1, 60}, {}};
  for (const double seconds : {5.0, 1.0, 2.0}) {
    RoundSample round = Round(60, {.compute = seconds});
    round.imbalance = seconds;
    round.kept_waiting = seconds / 8;
    round.step_seconds = {seconds - 0.5, seconds + 0.5};
    measured.rounds.push_back(round);
  }
  const ModeReport report = DeriveMode(ScalingMode::kStrong, {measured}, 1);
  const ConfigurationReport& at = report.configurations[0];
  EXPECT_EQ(at.images_per_second, 30);
  EXPECT_EQ(at.slowest_round, 12);
  EXPECT_EQ(at.fastest_round, 60);
  EXPECT_EQ(at.parts.compute, 2);
  EXPECT_EQ(at.imbalance, 2);
  EXPECT_EQ(at.kept_waiting, 0.25);
  EXPECT_EQ(at.step_count, 6);
  EXPECT_EQ(at.step_p50, 1.5);  // Third of 0.5 1.5 1.5 2.5 4.5 5.5.
  EXPECT_EQ(at.step_p99, 5.5);
}

TEST(DeriveModeTest, OfTwoRoundsTakesTheSlower) {
  const ModeReport report = DeriveMode(
      ScalingMode::kStrong,
      {{{1, 60}, {Round(60, {.compute = 1}), Round(60, {.compute = 2})}}}, 1);
  EXPECT_EQ(report.configurations[0].images_per_second, 30);
}

TEST(DeriveModeTest, MarksMoreRanksThanCores) {
  const ModeReport report = DeriveMode(
      ScalingMode::kStrong,
      {OneRound({2, 64}, {.compute = 1}), OneRound({3, 64}, {.compute = 1})},
      /*cores=*/2);
  EXPECT_FALSE(report.configurations[0].oversubscribed);
  EXPECT_TRUE(report.configurations[1].oversubscribed);
}

// The sentences, whole, on made-up numbers.

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
}  // namespace lockstep::benchmarks
