// Tests the bars on made-up efficiencies: met, not met, lowered by the control,
// and not measured.
#include "benchmarks/scaling/bars.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/data_types.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/harness/testing.h"
#include "benchmarks/scaling/document.h"
#include "benchmarks/scaling/results.h"
#include "benchmarks/scaling/settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/train/device.h"
#include "report/document.h"
#include "report/write.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Returns a configuration with one round of one step, which only computes.
MeasuredConfiguration OneRound(int world_size, int64_t global_batch,
                               RankKind ranks, double images_per_second) {
  const double seconds = static_cast<double>(global_batch) / images_per_second;
  return {{world_size, global_batch, ranks},
          {{.images_per_second = images_per_second,
            .parts = {.compute = seconds},
            .step_seconds = {seconds}}}};
}

// Returns a mode of that backend with the given efficiency at 2 ranks.
ModeReport Mode(ScalingMode mode, RankKind ranks, int64_t batch,
                double efficiency, int cores = 2) {
  const auto one = static_cast<double>(batch);
  ModeReport report =
      DeriveMode(mode,
                 {OneRound(1, batch, ranks, one),
                  OneRound(2, mode == ScalingMode::kWeak ? 2 * batch : batch,
                           ranks, 2 * one * efficiency)},
                 cores);
  report.variant.ranks = ranks;
  return report;
}

ScalingReport Report(const std::string& model, int64_t batch,
                     std::vector<ModeReport> modes) {
  ScalingReport report = {
      .settings = {.world_sizes = {1, 2}, .model = model, .batch_size = batch},
      .origin = ExampleOrigin("scaling"),
      .modes = std::move(modes)};
  return report;
}

std::vector<std::string> Texts(const ScalingReport& report) {
  std::vector<std::string> texts;
  for (const report::Bar& bar : BarsOf(report)) texts.push_back(bar.Text());
  return texts;
}

constexpr auto kWeak = ScalingMode::kWeak;
constexpr auto kStrong = ScalingMode::kStrong;
constexpr auto kProcesses = RankKind::kProcesses;

constexpr char kNoLenet[] =
    "weak scaling of lenet, 2 ranks, at least 97 percent of ideal: not "
    "measured";
constexpr char kNoLenetDdp[] =
    "weak scaling of lenet over DDP's, at least 1 times "
    "DistributedDataParallel's: not measured";
constexpr char kNoStrong[] =
    "strong scaling of lenet, 2 ranks, at least 95 percent of ideal: not "
    "measured";
constexpr char kNoResNet[] =
    "weak scaling of resnet18_d2l, 2 ranks, at least 97 percent of ideal: not "
    "measured";
constexpr char kNoResNetDdp[] =
    "weak scaling of resnet18_d2l over DDP's, at least 1 times "
    "DistributedDataParallel's: not measured";

TEST(ScalingBarsTest, AreNotForGpus) {
  ScalingReport report = Report("lenet", 256,
                                {Mode(kWeak, kProcesses, 256, 0.5),
                                 Mode(kWeak, RankKind::kApart, 256, 0.5)});
  EXPECT_THAT(BarsOf(report), SizeIs(5));
  EXPECT_THAT(ControlRemarks(report), SizeIs(1));
  report.settings.device = ComputeDevice::kCuda;
  EXPECT_THAT(BarsOf(report), IsEmpty());
  EXPECT_THAT(ControlRemarks(report), IsEmpty());
}

TEST(ScalingBarsTest, HoldLenetToItsGoalsInBothModes) {
  EXPECT_THAT(
      Texts(Report("lenet", 256,
                   {Mode(kStrong, kProcesses, 256, 0.945),
                    Mode(kWeak, kProcesses, 256, 0.975)})),
      ElementsAre("weak scaling of lenet, 2 ranks, at least 97 percent of "
                  "ideal: 97.5: met",
                  kNoLenetDdp,
                  "strong scaling of lenet, 2 ranks, at least 95 percent of "
                  "ideal: 94.5: NOT met",
                  kNoResNet, kNoResNetDdp));
  EXPECT_THAT(
      Texts(Report("lenet", 256,
                   {Mode(kStrong, kProcesses, 256, 0.955),
                    Mode(kWeak, kProcesses, 256, 0.965)})),
      ElementsAre("weak scaling of lenet, 2 ranks, at least 97 percent of "
                  "ideal: 96.5: NOT met",
                  kNoLenetDdp,
                  "strong scaling of lenet, 2 ranks, at least 95 percent of "
                  "ideal: 95.5: met",
                  kNoResNet, kNoResNetDdp));
}

TEST(ScalingBarsTest, HoldResNetToItsGoalAndToDistributedDataParallel) {
  EXPECT_THAT(
      Texts(Report("resnet18_d2l", 32,
                   {Mode(kWeak, kProcesses, 32, 0.9),
                    Mode(kWeak, RankKind::kDdp, 32, 0.75)})),
      ElementsAre(kNoLenet, kNoLenetDdp, kNoStrong,
                  "weak scaling of resnet18_d2l, 2 ranks, at least 97 percent "
                  "of ideal: 90.0: NOT met",
                  "weak scaling of resnet18_d2l over DDP's, at least 1 times "
                  "DistributedDataParallel's: 1.20: met"));
  const std::vector<report::Bar> slower =
      BarsOf(Report("resnet18_d2l", 32,
                    {Mode(kWeak, kProcesses, 32, 0.98),
                     Mode(kWeak, RankKind::kDdp, 32, 0.99)}));
  EXPECT_TRUE(slower[3].Met());
  EXPECT_TRUE(slower[4].value.has_value());
  EXPECT_FALSE(slower[4].Met());
}

TEST(ScalingBarsTest, AreLoweredByAControlBelowTheGoal) {
  const auto with = [](double ours, double control) {
    return Report("lenet", 256,
                  {Mode(kStrong, kProcesses, 256, ours),
                   Mode(kStrong, RankKind::kApart, 256, control)});
  };
  // 97% of 90% is 87.3%.
  EXPECT_EQ(Texts(with(0.875, 0.9))[2],
            "strong scaling of lenet, 2 ranks, at least 87.3 percent, 97% of "
            "the control: 87.5: met");
  EXPECT_EQ(Texts(with(0.87, 0.9))[2],
            "strong scaling of lenet, 2 ranks, at least 87.3 percent, 97% of "
            "the control: 87.0: NOT met");
  EXPECT_THAT(
      ControlRemarks(with(0.875, 0.9)),
      ElementsAre("The machine forbids 95% of ideal in strong scaling of lenet "
                  "at 2 ranks: the same processes without communication "
                  "(apart), the control, reach 90.0% in this run. The bar is "
                  "97% of that."));
  // The control meets the goal, so the machine allows it, and the goal stays.
  EXPECT_EQ(Texts(with(0.94, 0.951))[2],
            "strong scaling of lenet, 2 ranks, at least 95 percent of ideal: "
            "94.0: NOT met");
  EXPECT_THAT(ControlRemarks(with(0.94, 0.951)), IsEmpty());
}

TEST(ScalingBarsTest, TakeTheControlOfTheSameModeAndType) {
  ModeReport other_type = Mode(kStrong, RankKind::kApart, 256, 0.8);
  other_type.variant.type = DataType::kBFloat16;
  const ScalingReport report =
      Report("lenet", 256,
             {Mode(kStrong, kProcesses, 256, 0.94), other_type,
              Mode(kWeak, kProcesses, 256, 0.9),
              Mode(kWeak, RankKind::kApart, 256, 0.9)});
  const std::vector<report::Bar> bars = BarsOf(report);
  EXPECT_DOUBLE_EQ(bars[0].needed, 0.97 * 90);
  EXPECT_TRUE(bars[0].Met());
  EXPECT_EQ(bars[2].needed, 95);
  EXPECT_FALSE(bars[2].Met());
}

TEST(ScalingBarsTest, AreNotMeasuredByAnotherCase) {
  const auto none =
      ElementsAre(kNoLenet, kNoLenetDdp, kNoStrong, kNoResNet, kNoResNetDdp);
  // The cases differ in the batch, the backend, the type, the image or the
  // baseline.
  EXPECT_THAT(Texts(Report("lenet", 128, {Mode(kWeak, kProcesses, 128, 1)})),
              none);
  EXPECT_THAT(
      Texts(Report("lenet", 256, {Mode(kWeak, RankKind::kThreads, 256, 1)})),
      none);
  ScalingReport report =
      Report("resnet18_d2l", 32, {Mode(kWeak, kProcesses, 32, 1)});
  report.settings.input.height = 56;
  EXPECT_THAT(Texts(report), none);
  report.settings.input = {};
  report.modes[0].variant.type = DataType::kBFloat16;
  EXPECT_THAT(Texts(report), none);
  report.modes[0].variant.type = DataType::kFloat32;
  EXPECT_TRUE(BarsOf(report)[3].value.has_value());
  auto& configurations = report.modes[0].configurations;
  configurations.erase(configurations.begin());
  EXPECT_THAT(Texts(report), none);
}

TEST(ScalingBarsTest, AreNotJudgedWhereRanksShareACore) {
  const ScalingReport report =
      Report("lenet", 256, {Mode(kWeak, kProcesses, 256, 0.5, /*cores=*/1)});
  EXPECT_EQ(Texts(report)[0],
            "weak scaling of lenet, 2 ranks, at least 97 percent of ideal: "
            "50.0: not judged");
}

TEST(ScalingBarsTest, StandBelowTheTables) {
  ScalingReport report = Report("resnet18_d2l", 32,
                                {Mode(kWeak, kProcesses, 32, 0.9),
                                 Mode(kWeak, RankKind::kApart, 32, 0.93456),
                                 Mode(kWeak, RankKind::kDdp, 32, 0.75)});
  report.settings.modes = {kWeak};
  report.settings.backends = {kProcesses, RankKind::kApart, RankKind::kDdp};
  report::Document document = ScalingDocument(report);
  EXPECT_THAT(document.bars, SizeIs(5));
  EXPECT_THAT(report::TerminalText(document),
              AllOf(HasSubstr("reach 93.5% in this run."),
                    HasSubstr("at least 90.652 percent, 97% of the control"),
                    HasSubstr("90.0: NOT met\n")));
  for (report::Bar& bar : document.bars) bar.judged = false;
  ExpectNarrow(report::TerminalText(document));
}

}  // namespace
}  // namespace lockstep::benchmarks
