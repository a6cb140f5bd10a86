// The plan and the order of runs.
#include "benchmarks/scaling/plan.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "benchmarks/scaling/measure.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(DefaultWorldSizesTest, ArePowersOfTwoAndTheCores) {
  EXPECT_THAT(DefaultWorldSizes(1), ElementsAre(1));
  EXPECT_THAT(DefaultWorldSizes(2), ElementsAre(1, 2));
  EXPECT_THAT(DefaultWorldSizes(3), ElementsAre(1, 2, 3));
  EXPECT_THAT(DefaultWorldSizes(4), ElementsAre(1, 2, 4));
  EXPECT_THAT(DefaultWorldSizes(6), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(DefaultWorldSizes(64), ElementsAre(1, 2, 4, 8, 16, 32, 64));
  EXPECT_EQ(DefaultWorldSizes(96), DefaultWorldSizes(64));
}

TEST(ParseWorldSizesTest, SortsAndDropsRepetitions) {
  EXPECT_THAT(ParseWorldSizes("4,1,2,4"), IsOkAndHolds(ElementsAre(1, 2, 4)));
  EXPECT_THAT(ParseWorldSizes("64"), IsOkAndHolds(ElementsAre(64)));
}

TEST(ParseWorldSizesTest, NamesTheFlagAndTheText) {
  for (const char* text :
       {"", "0", "-1", "1,,2", "1,two", "65", "1.5", "99999999999999999999"}) {
    EXPECT_THAT(ParseWorldSizes(text),
                StatusIs(kInvalid, HasSubstr("--world_sizes: '")))
        << text;
  }
}

TEST(ParseModesTest, AcceptsEachAndBoth) {
  EXPECT_THAT(ParseModes("strong"),
              IsOkAndHolds(ElementsAre(ScalingMode::kStrong)));
  EXPECT_THAT(
      ParseModes("weak,strong,weak"),
      IsOkAndHolds(ElementsAre(ScalingMode::kStrong, ScalingMode::kWeak)));
  for (const char* text : {"", "Strong", "strong;weak"}) {
    EXPECT_THAT(ParseModes(text), StatusIs(kInvalid, HasSubstr("--mode: '")));
  }
}

TEST(ParseRankKindTest, AcceptsBothKinds) {
  EXPECT_THAT(ParseRankKind("processes"), IsOkAndHolds(RankKind::kProcesses));
  EXPECT_THAT(ParseRankKind("threads"), IsOkAndHolds(RankKind::kThreads));
  EXPECT_THAT(ParseRankKind("mpi"),
              StatusIs(kInvalid, HasSubstr("--backend: 'mpi'")));
}

TEST(NameTest, IsWhatTheFlagSays) {
  for (const ScalingMode mode : {ScalingMode::kStrong, ScalingMode::kWeak}) {
    EXPECT_THAT(ParseModes(Name(mode)), IsOkAndHolds(ElementsAre(mode)));
  }
  for (const RankKind kind : {RankKind::kProcesses, RankKind::kThreads}) {
    EXPECT_THAT(ParseRankKind(Name(kind)), IsOkAndHolds(kind));
  }
}

TEST(ValidateTest, AcceptsTheDefaults) {
  EXPECT_THAT(Validate({.world_sizes = {1, 2, 64}}), IsOk());
}

TEST(ValidateTest, NamesTheFlagThatIsWrong) {
  EXPECT_THAT(Validate({.world_sizes = {1}, .model = "alexnet"}),
              StatusIs(kInvalid, HasSubstr("--model: 'alexnet'")));
  EXPECT_THAT(Validate({.world_sizes = {1}, .dataset = "mnist"}),
              StatusIs(kInvalid, HasSubstr("--dataset: 'mnist'")));
  EXPECT_THAT(Validate({.world_sizes = {1}, .batch_size = 0}),
              StatusIs(kInvalid, HasSubstr("--batch_size: 0")));
  EXPECT_THAT(Validate({.world_sizes = {1}, .rounds = 0}),
              StatusIs(kInvalid, HasSubstr("--rounds: 0")));
  EXPECT_THAT(Validate({.world_sizes = {1}, .steps = -1}),
              StatusIs(kInvalid, HasSubstr("--steps: -1")));
  EXPECT_THAT(Validate({.world_sizes = {1}, .warmup_steps = 0}),
              StatusIs(kInvalid, HasSubstr("--warmup_steps: 0")));
}

TEST(ValidateTest, RejectsFewerImagesThanRanksInStrongScalingOnly) {
  ScalingSettings settings = {.world_sizes = {1, 8}, .batch_size = 7};
  EXPECT_THAT(Validate(settings),
              StatusIs(kInvalid, AllOf(HasSubstr("--batch_size: 7"),
                                       HasSubstr("8 ranks"))));
  settings.modes = {ScalingMode::kWeak};
  EXPECT_THAT(Validate(settings), IsOk());
}

TEST(DistinctConfigurationsTest, RunsWhatTheModesShareOnce) {
  const ScalingSettings settings = {.world_sizes = {1, 2}, .batch_size = 10};
  EXPECT_THAT(DistinctConfigurations(settings),
              ElementsAre(Configuration{1, 10}, Configuration{2, 10},
                          Configuration{2, 20}));
}

TEST(DistinctConfigurationsTest, KeepsToTheModesAsked) {
  ScalingSettings settings = {.world_sizes = {2, 3}, .batch_size = 10};
  settings.modes = {ScalingMode::kWeak};
  EXPECT_THAT(DistinctConfigurations(settings),
              ElementsAre(Configuration{2, 20}, Configuration{3, 30}));
}

TEST(RoundsWithinTest, DropsRoundsThatDoNotFit) {
  const std::vector<RunCost> costs = {
      {.fixed_seconds = 1, .step_seconds = 0.1},
      {.fixed_seconds = 2, .step_seconds = 0.3}};
  // A round of the fewest steps, 10, takes 7 seconds.
  EXPECT_EQ(RoundsWithin(35.01, 5, costs), 5);
  EXPECT_EQ(RoundsWithin(34.99, 5, costs), 4);
  EXPECT_EQ(RoundsWithin(0, 5, costs), 1);
}

TEST(StepsWithinTest, DividesTheTimeThatIsLeft) {
  const std::vector<RunCost> costs = {
      {.fixed_seconds = 1, .step_seconds = 0.1},
      {.fixed_seconds = 2, .step_seconds = 0.3}};
  // 5 rounds of 3 + 0.4 n seconds: 55 seconds allow n = 20.
  EXPECT_EQ(StepsWithin(55.01, 5, costs), 20);
  EXPECT_EQ(StepsWithin(1, 5, costs), 10);
  EXPECT_EQ(StepsWithin(1e6, 5, costs), 60);
}

// The order of runs and what becomes of their samples, with made-up runs.

// Runs that take no time, and a log of them.
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
  std::string shown;
  int fail_at = -1;  // The run that fails.

 private:
  absl::StatusOr<RoundSample> Run(const RunSpec& spec) {
    const Configuration& c = spec.configuration;
    if (static_cast<int>(runs.size()) == fail_at) {
      return absl::AbortedError("rank 1 died");
    }
    runs.push_back(
        absl::StrCat(c.world_size, "x", c.global_batch, "x", spec.steps));
    RoundSample sample;
    sample.parts.compute = 0.25;
    sample.images_per_second = static_cast<double>(4 * c.global_batch);
    sample.step_seconds.assign(spec.steps, 0.25);
    return sample;
  }
};

ScalingSettings SmallSettings() {
  return {.world_sizes = {1, 2}, .batch_size = 8, .rounds = 2, .steps = 3};
}

TEST(MeasureScalingTest, InterleavesTheConfigurations) {
  FakeRuns fake;
  const auto report = MeasureScaling(SmallSettings(), {.cores = 2},
                                     fake.runner(), fake.progress());
  ASSERT_THAT(report, IsOk());
  EXPECT_THAT(fake.runs, ElementsAre("1x8x3", "2x8x3", "2x16x3",  //
                                     "2x8x3", "1x8x3", "2x16x3"));
  EXPECT_THAT(fake.shown,
              HasSubstr("round 2 of 2: 2 ranks, 16 images a step: 64"));
}

TEST(MeasureScalingTest, GivesEachModeItsConfigurations) {
  FakeRuns fake;
  const auto report = MeasureScaling(SmallSettings(), {.cores = 2},
                                     fake.runner(), fake.progress());
  ASSERT_THAT(report, IsOk());
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

TEST(MeasureScalingTest, ProbesToFindOutHowManyStepsFit) {
  FakeRuns fake;
  ScalingSettings settings = SmallSettings();
  settings.steps = 0;
  settings.modes = {ScalingMode::kStrong};
  // Two rounds of two runs of 20 steps of 0.25 s take 20 s.
  const auto report = MeasureScaling(settings, {.seconds = 20.3, .cores = 2},
                                     fake.runner(), fake.progress());
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
  EXPECT_THAT(MeasureScaling(SmallSettings(), {.cores = 2}, fake.runner(),
                             fake.progress()),
              StatusIs(absl::StatusCode::kAborted, "rank 1 died"));
  EXPECT_EQ(fake.runs.size(), 4u);
}

}  // namespace
}  // namespace lockstep::benchmarks
