// The plan: lists, validation, configurations, length.
#include "benchmarks/scaling_plan.h"

#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
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
    EXPECT_THAT(ParseModes(ScalingModeName(mode)),
                IsOkAndHolds(ElementsAre(mode)));
  }
  for (const RankKind kind : {RankKind::kProcesses, RankKind::kThreads}) {
    EXPECT_THAT(ParseRankKind(RankKindName(kind)), IsOkAndHolds(kind));
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

}  // namespace
}  // namespace lockstep
