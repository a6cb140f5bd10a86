// Tests the order of runs, and the formulas and the sentences on made-up
// numbers whose results are exact.
#include "benchmarks/scaling/results.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "benchmarks/scaling/settings.h"
#include "benchmarks/scaling/turn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// Tests of the order of runs and the use of their samples, with made-up runs.

// A runner whose runs take no time, and the log of its runs.
class FakeRuns {
 public:
  ScalingRunner runner() {
    return [this](const RunSpec& spec) { return Run(spec); };
  }
  ScalingProgress progress() {
    return [this](absl::string_view text) { absl::StrAppend(&shown, text); };
  }

  // "world size x global batch x steps" of each run.
  std::vector<std::string> runs;
  std::vector<double> learning_rates;
  std::string shown;
  int fail_at = -1;  // The run that fails.
  absl::Status failure = absl::AbortedError("rank 1 died");

 private:
  absl::StatusOr<RoundSample> Run(const RunSpec& spec) {
    const Configuration& c = spec.configuration;
    if (static_cast<int>(runs.size()) == fail_at) {
      return failure;
    }
    runs.push_back(
        absl::StrCat(c.world_size, "x", c.global_batch, "x", spec.steps));
    learning_rates.push_back(spec.learning_rate);
    return RoundSample{
        .images_per_second = static_cast<double>(4 * c.global_batch),
        .parts = {.compute = 0.25},
        .step_seconds = std::vector<double>(spec.steps, 0.25)};
  }
};

ScalingSettings SmallSettings() {
  return {.world_sizes = {1, 2}, .batch_size = 8, .rounds = 2, .steps = 3};
}

TEST(MeasureScalingTest, InterleavesConfigurationsAndGivesEachModeItsOwn) {
  FakeRuns fake;
  const auto report =
      MeasureScaling(SmallSettings(), 2, fake.runner(), fake.progress());
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(fake.runs, ElementsAre("1x8x3", "2x8x3", "2x16x3",  //
                                     "2x8x3", "1x8x3", "2x16x3"));
  EXPECT_THAT(fake.shown,
              HasSubstr("round 2 of 2: 2 ranks, 16 images a step: 64"));
  ASSERT_EQ(report->modes.size(), 2u);
  const ModeReport &strong = report->modes[0], &weak = report->modes[1];
  EXPECT_EQ(strong.mode, ScalingMode::kStrong);
  ASSERT_EQ(strong.configurations.size(), 2u);
  EXPECT_EQ(strong.configurations[1].global_batch(), 8);
  EXPECT_EQ(strong.configurations[1].efficiency, 0.5);
  EXPECT_EQ(weak.mode, ScalingMode::kWeak);
  ASSERT_EQ(weak.configurations.size(), 2u);
  EXPECT_EQ(weak.configurations[0].global_batch(), 8);
  EXPECT_EQ(weak.configurations[1].global_batch(), 16);
  EXPECT_EQ(weak.configurations[1].efficiency, 1);
  EXPECT_EQ(weak.configurations[1].measured.rounds.size(), 2u);
  EXPECT_EQ(weak.configurations[1].step_count, 6);
  EXPECT_THAT(strong.limits, HasSubstr("50%"));
}

// The chapter of d2l trains ResNet-18 with 256 images at 0.1 on one device and
// with 512 at 0.2 on two. It trains LeNet with 256 images at 0.2 on both.
TEST(MeasureScalingTest, ScalesTheLearningRateWithTheGlobalBatch) {
  ScalingSettings settings = SmallSettings();
  settings.batch_size = 256;
  settings.learning_rate = 0.1;
  settings.rounds = 1;
  settings.modes = {ScalingMode::kWeak};
  FakeRuns weak, strong;
  ASSERT_THAT(MeasureScaling(settings, 2, weak.runner(), weak.progress()),
              IsOk());
  EXPECT_THAT(weak.runs, ElementsAre("1x256x3", "2x512x3"));
  EXPECT_THAT(weak.learning_rates, ElementsAre(0.1, 0.2));
  settings.modes = {ScalingMode::kStrong};
  settings.learning_rate = 0.2;
  ASSERT_THAT(MeasureScaling(settings, 2, strong.runner(), strong.progress()),
              IsOk());
  EXPECT_THAT(strong.runs, ElementsAre("1x256x3", "2x256x3"));
  EXPECT_THAT(strong.learning_rates, ElementsAre(0.2, 0.2));
}

TEST(MeasureScalingTest, ProbesToFindOutHowManyStepsFit) {
  FakeRuns fake;
  ScalingSettings settings = SmallSettings();
  settings.steps = 0;
  settings.modes = {ScalingMode::kStrong};
  // Two rounds of two runs of 20 steps of 0.25 s take 20 s.
  settings.seconds = 20.3;
  const auto report =
      MeasureScaling(settings, 2, fake.runner(), fake.progress());
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(fake.runs, ElementsAre("1x8x3", "2x8x3", "1x8x20", "2x8x20",
                                     "2x8x20", "1x8x20"));
  EXPECT_EQ(report->settings.steps, 20);
  EXPECT_EQ(report->modes[0].configurations[0].measured.rounds.size(), 2u);
  EXPECT_THAT(fake.shown, HasSubstr("probing (not counted): 1 rank,"));
}

TEST(MeasureScalingTest, StopsAtTheFirstRunThatFails) {
  FakeRuns fake;
  fake.fail_at = 4;
  EXPECT_THAT(
      MeasureScaling(SmallSettings(), 2, fake.runner(), fake.progress()),
      StatusIs(absl::StatusCode::kAborted, "rank 1 died"));
  EXPECT_EQ(fake.runs.size(), 4u);
}

TEST(MeasureScalingTest, KeepsTheWholeRoundsOfARunThatWasInterrupted) {
  FakeRuns fake;
  fake.fail_at = 5;
  fake.failure = absl::CancelledError("interrupted by signal 2 (SIGINT)");
  const auto report =
      MeasureScaling(SmallSettings(), 2, fake.runner(), fake.progress());
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->ended,
            "ended after 1 of 2 rounds: interrupted by signal 2 (SIGINT)");
  EXPECT_THAT(report->modes[0].configurations[0].measured.rounds, SizeIs(1));
  fake = FakeRuns();
  fake.fail_at = 2;
  fake.failure = absl::CancelledError("interrupted");
  EXPECT_THAT(
      MeasureScaling(SmallSettings(), 2, fake.runner(), fake.progress()),
      StatusIs(absl::StatusCode::kCancelled, "interrupted"));
}

// Tests of the formulas.

StepParts Scaled(StepParts parts, double scale) {
  for (double StepParts::*const part : kStepParts) parts.*part *= scale;
  return parts;
}

// Returns a round with one step of the given parts, in seconds.
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
  // The ideal is half of each part.
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
      /*cores=*/1);
  EXPECT_DOUBLE_EQ(report.configurations[1].efficiency, 1.25);
  EXPECT_DOUBLE_EQ(report.configurations[1].lost.compute, -0.25);
  // More ranks than cores.
  EXPECT_FALSE(report.configurations[0].oversubscribed);
  EXPECT_TRUE(report.configurations[1].oversubscribed);
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
  EXPECT_EQ(at.step_p50, 1.5);  // The third of 0.5 1.5 1.5 2.5 4.5 5.5.
  EXPECT_EQ(at.step_p99, 5.5);
}

TEST(DeriveModeTest, OfTwoRoundsTakesTheSlower) {
  const ModeReport report = DeriveMode(
      ScalingMode::kStrong,
      {{{1, 60}, {Round(60, {.compute = 1}), Round(60, {.compute = 2})}}}, 1);
  EXPECT_EQ(report.configurations[0].images_per_second, 30);
}

// Tests of whole sentences on made-up numbers.

// Returns a configuration with the given parts of a step, in milliseconds.
MeasuredConfiguration Measured(Configuration configuration, StepParts ms,
                               double imbalance = 0) {
  MeasuredConfiguration measured = OneRound(configuration, Scaled(ms, 1e-3));
  measured.rounds[0].imbalance = imbalance;
  return measured;
}

std::string Limits(ScalingMode mode,
                   std::vector<MeasuredConfiguration> measured, int cores) {
  return DescribeLimits(DeriveMode(mode, std::move(measured), cores), cores);
}

TEST(DescribeLimitsTest, NamesWhatStrongScalingLosesWorstFirst) {
  EXPECT_EQ(
      Limits(ScalingMode::kStrong,
             {Measured({1, 256}, {.compute = 40}),
              Measured({2, 256}, {.compute = 22, .exposed_communication = 3})},
             2),
      "At 2 ranks, strong scaling reaches 1.60 times the images/s of 1 rank: "
      "80% of ideal. The 20% of a step that is lost: 12% exposed communication "
      "(3.00 ms a step); 8% compute (a rank's 128 images take 55% of the time "
      "of 256 at 1 rank, not 50%: 2.00 ms more a step).");
}

TEST(DescribeLimitsTest, NamesWhatWeakScalingLosesAndGains) {
  EXPECT_EQ(
      Limits(ScalingMode::kWeak,
             {Measured({1, 256}, {.compute = 36, .data_wait = 2, .rest = 2}),
              Measured({2, 512}, {.compute = 45, .data_wait = 2, .rest = 3}),
              Measured({4, 1024}, {.compute = 49, .data_wait = 1, .rest = 0})},
             4),
      "At 4 ranks, weak scaling reaches 3.20 times the images/s of 1 rank: 80% "
      "of ideal. The 20% of a step that is lost: 26% compute (a rank's 256 "
      "images take 1.36 times as long as at 1 rank: 13.00 ms more a step); "
      "less "
      "a gain of 2% data "
      "wait (1.00 ms a step); 4% the rest of the step (0.00 ms a step).");
}

TEST(DescribeLimitsTest, SaysWhatTheNumbersComeTo) {
  struct Case {
    ScalingMode mode;
    std::vector<MeasuredConfiguration> measured;
    int cores;
    testing::Matcher<std::string> limits;
  };
  const MeasuredConfiguration one = Measured({1, 64}, {.compute = 40});
  const Case cases[] = {
      {ScalingMode::kWeak,
       {one, Measured({2, 128}, {.compute = 40.1})},
       2,
       EndsWith("100% of ideal. Nothing limits it here.")},
      {ScalingMode::kWeak,
       {one, Measured({2, 128}, {.compute = 40.15, .rest = 0.15})},
       2,
       EndsWith("99% of ideal.")},
      // The sentences are about the largest world size that has a core for each
      // rank.
      {ScalingMode::kStrong,
       {one, Measured({2, 64}, {.compute = 25}),
        Measured({4, 64}, {.compute = 30})},
       2,
       AllOf(StartsWith("At 2 ranks, "), Not(HasSubstr("share")))},
      {ScalingMode::kStrong,
       {one, Measured({2, 64}, {.compute = 40})},
       1,
       EndsWith("Its ranks share 1 core, which alone keeps it from scaling.")},
      {ScalingMode::kStrong,
       {one},
       1,
       "One world size alone says nothing about scaling."},
      // The wait for the slowest rank is at most the exposed communication.
      {ScalingMode::kStrong,
       {one, Measured({2, 64}, {.compute = 20, .exposed_communication = 1},
                      /*imbalance=*/0.5)},
       2,
       HasSubstr("(1.00 ms a step, of which up to 1.00 ms is waiting for the "
                 "slowest rank)")},
      {ScalingMode::kStrong,
       {one, Measured({2, 64}, {.compute = 16, .exposed_communication = 4})},
       2,
       EndsWith("100% of ideal. Nothing limits it here.")},
      {ScalingMode::kWeak,
       {one, Measured({2, 128}, {.compute = 38, .exposed_communication = 4})},
       2,
       HasSubstr("less a gain of 5% compute (a rank's 64 images take 0.95 "
                 "times as long as at 1 rank: 2.00 ms less a step).")}};
  for (const Case& c : cases) {
    EXPECT_THAT(Limits(c.mode, c.measured, c.cores), c.limits);
  }
}

TEST(DescribeLimitsTest, ReportsImbalanceAndRoundsThatDiffer) {
  MeasuredConfiguration two =
      Measured({2, 64}, {.compute = 20, .exposed_communication = 2},
               /*imbalance=*/0.07);
  two.rounds.assign(3, two.rounds[0]);
  two.rounds[1].images_per_second *= 0.75;
  EXPECT_THAT(Limits(ScalingMode::kStrong,
                     {Measured({1, 64}, {.compute = 40}), two}, 2),
              EndsWith("exposed communication (2.00 ms a step, of which up to "
                       "1.40 ms is waiting for the slowest rank). The slowest "
                       "rank of a step computes 7% longer than the mean. "
                       "Rounds of one configuration "
                       "differ by up to 25%: the machine was not quiet, so "
                       "read small differences with care."));
}

TEST(DescribeLimitsTest, BlamesOtherWorkForTheCoresItTook) {
  MeasuredConfiguration one = Measured({1, 64}, {.compute = 40});
  MeasuredConfiguration two = Measured({2, 64}, {.compute = 30});
  one.rounds[0].kept_waiting = 0.02;
  two.rounds[0].kept_waiting = 0.25;
  EXPECT_THAT(
      Limits(ScalingMode::kStrong, {one, two}, 2),
      EndsWith("The cores were busy otherwise (with the ranks' own "
               "communication threads, or with other programs): ranks with "
               "something to do did not run 25% of the time (2% at 1 rank)."));
  two.rounds[0].kept_waiting = 0.04;
  EXPECT_THAT(Limits(ScalingMode::kStrong, {one, two}, 2),
              Not(HasSubstr("busy otherwise")));
}

}  // namespace
}  // namespace lockstep::benchmarks
