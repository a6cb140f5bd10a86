// The order of runs and what becomes of their samples, with made-up runs.
#include "benchmarks/scaling_measure.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
                                     "1x8x3", "2x8x3", "2x16x3"));
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
                                     "1x8x20", "2x8x20"));
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
}  // namespace lockstep
