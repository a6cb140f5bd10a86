// Tests the flags, the configurations, and the lengths of runs.
#include "benchmarks/scaling/settings.h"

#include "base/data_types.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/train/device.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

TEST(ParseWorldSizesTest, SortsDropsRepetitionsAndNamesWhatIsWrong) {
  EXPECT_THAT(ParseWorldSizes("4,1,2,4"), IsOkAndHolds(ElementsAre(1, 2, 4)));
  EXPECT_THAT(ParseWorldSizes("64"), IsOkAndHolds(ElementsAre(64)));
  for (const char* text :
       {"", "0", "-1", "1,,2", "1,two", "65", "1.5", "99999999999999999999"}) {
    EXPECT_THAT(ParseWorldSizes(text),
                StatusIs(kInvalid, HasSubstr("--world_sizes: '")))
        << text;
  }
}

TEST(ParseWorldSizesTest, TakesMinusOneForAllGpus) {
  EXPECT_THAT(ParseWorldSizes("1,-1", /*all_gpus=*/8),
              IsOkAndHolds(ElementsAre(1, 8)));
  EXPECT_THAT(ParseWorldSizes("-1", /*all_gpus=*/96),
              IsOkAndHolds(ElementsAre(64)));
  EXPECT_THAT(ParseWorldSizes("-2", /*all_gpus=*/8),
              StatusIs(kInvalid, HasSubstr("--world_sizes: '-2'")));
}

TEST(ParseModesTest, AcceptsEachAndBothByName) {
  EXPECT_THAT(ParseModes("strong"),
              IsOkAndHolds(ElementsAre(ScalingMode::kStrong)));
  EXPECT_THAT(
      ParseModes("weak,strong,weak"),
      IsOkAndHolds(ElementsAre(ScalingMode::kStrong, ScalingMode::kWeak)));
  for (const char* text : {"", "Strong", "strong;weak"}) {
    EXPECT_THAT(ParseModes(text), StatusIs(kInvalid, HasSubstr("--mode: '")));
  }
  for (const ScalingMode mode : {ScalingMode::kStrong, ScalingMode::kWeak}) {
    EXPECT_THAT(ParseModes(Name(mode)), IsOkAndHolds(ElementsAre(mode)));
  }
  for (const RankKind kind :
       {RankKind::kProcesses, RankKind::kThreads, RankKind::kMpi}) {
    EXPECT_THAT(ParseBackends(Name(kind)), IsOkAndHolds(ElementsAre(kind)));
  }
}

TEST(ParsePeersTest, AcceptsNoneAndPyTorch) {
  EXPECT_THAT(ParsePeers(""), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(ParsePeers("torch"), IsOkAndHolds(ElementsAre(RankKind::kDdp)));
  EXPECT_THAT(ParsePeers("ddp"), StatusIs(kInvalid, HasSubstr("--peers: '")));
}

TEST(ValidateTest, RejectsFewerImagesThanRanksInStrongScalingOnly) {
  EXPECT_THAT(Validate({.world_sizes = {1, 2, 64}}), IsOk());
  ScalingSettings settings = {.world_sizes = {1, 8}, .batch_size = 7};
  EXPECT_THAT(Validate(settings),
              StatusIs(kInvalid, AllOf(HasSubstr("--batch_size: 7"),
                                       HasSubstr("8 ranks"))));
  settings.modes = {ScalingMode::kWeak};
  EXPECT_THAT(Validate(settings), IsOk());
}

TEST(DistinctConfigurationsTest, RunsWhatTheModesShareOnce) {
  ScalingSettings settings = {.world_sizes = {1, 2}, .batch_size = 10};
  EXPECT_THAT(DistinctConfigurations(settings),
              ElementsAre(Configuration{1, 10}, Configuration{2, 10},
                          Configuration{2, 20}));
  settings.world_sizes = {2, 3};
  settings.modes = {ScalingMode::kWeak};
  EXPECT_THAT(DistinctConfigurations(settings),
              ElementsAre(Configuration{2, 20}, Configuration{3, 30}));
}

TEST(DistinctConfigurationsTest, RunsOneRankForAllBackendsAndEachType) {
  const ScalingSettings settings = {
      .modes = {ScalingMode::kStrong},
      .world_sizes = {1, 2},
      .backends = {RankKind::kThreads, RankKind::kProcesses},
      .types = {DataType::kFloat32, DataType::kBFloat16},
      .batch_size = 10};
  const auto of = [](int world_size, RankKind ranks, DataType type) {
    return Configuration{world_size, 10, ranks, type};
  };
  EXPECT_THAT(DistinctConfigurations(settings),
              ElementsAre(of(1, RankKind::kThreads, DataType::kFloat32),
                          of(1, RankKind::kThreads, DataType::kBFloat16),
                          of(2, RankKind::kThreads, DataType::kFloat32),
                          of(2, RankKind::kThreads, DataType::kBFloat16),
                          of(2, RankKind::kProcesses, DataType::kFloat32),
                          of(2, RankKind::kProcesses, DataType::kBFloat16)));
}

// PyTorch's run of one rank is a configuration of its own.
TEST(DistinctConfigurationsTest, RunsOneRankOfDdpToo) {
  const ScalingSettings settings = {
      .modes = {ScalingMode::kWeak},
      .world_sizes = {1, 2},
      .backends = {RankKind::kDdp, RankKind::kProcesses, RankKind::kApart},
      .batch_size = 10};
  EXPECT_THAT(DistinctConfigurations(settings),
              ElementsAre(Configuration{1, 10, RankKind::kDdp},
                          Configuration{1, 10, RankKind::kProcesses},
                          Configuration{2, 20, RankKind::kDdp},
                          Configuration{2, 20, RankKind::kProcesses},
                          Configuration{2, 20, RankKind::kApart}));
}

TEST(DistinctConfigurationsTest, RunOnTheDeviceOfTheSettings) {
  const ScalingSettings settings = {.world_sizes = {1, 2},
                                    .device = ComputeDevice::kCuda};
  for (const Configuration& c : DistinctConfigurations(settings)) {
    EXPECT_EQ(c.device, ComputeDevice::kCuda);
  }
}

TEST(RoundsWithinTest, DropsRoundsThatDoNotFitAndDividesTheTimeThatIsLeft) {
  const RunCost round = {.fixed_seconds = 3, .step_seconds = 0.4};
  // A round of the fewest steps, 10, takes 7 seconds.
  EXPECT_EQ(RoundsWithin(35.01, 5, round), 5);
  EXPECT_EQ(RoundsWithin(34.99, 5, round), 4);
  EXPECT_EQ(RoundsWithin(0, 5, round), 1);
  // 5 rounds of 3 + 0.4 n seconds: 55 seconds allow n = 20.
  EXPECT_EQ(StepsWithin(55.01, 5, round), 20);
  EXPECT_EQ(StepsWithin(1, 5, round), 10);
  EXPECT_EQ(StepsWithin(1e6, 5, round), 60);
}

}  // namespace
}  // namespace lockstep::benchmarks
