// The formulas, on numbers made up so that they come out exactly.
#include "benchmarks/scaling_report.h"

#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
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

}  // namespace
}  // namespace lockstep
