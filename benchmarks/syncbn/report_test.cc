// The formulas, on numbers that are easy to check by hand.
#include "benchmarks/syncbn/report.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/data_types.h"
#include "benchmarks/syncbn/example.h"
#include "benchmarks/syncbn/measure.h"
#include "benchmarks/syncbn/plan.h"
#include "benchmarks/syncbn/turn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::SizeIs;

constexpr LayerShape kShape = {ShapeSet::kResNet18, 32, 28, 28, 64};
constexpr double kTensorBytes = 32 * 28 * 28 * 64 * 4;

LayerReport Layer(double seconds = 1) {
  return DeriveLayer(SyncBnSettings(), kShape, ExampleTurns(seconds, true));
}

TEST(DeriveLayerTest, HasMediansAndTheirSpread) {
  const PassReport forward = Layer().passes[0];
  EXPECT_EQ(forward.pass, Pass::kForward);
  EXPECT_DOUBLE_EQ(forward.sync.median, 1.25);
  EXPECT_DOUBLE_EQ(forward.sync.min, 0.625);
  EXPECT_DOUBLE_EQ(forward.sync.p25, 0.625);
  EXPECT_DOUBLE_EQ(forward.sync.p75, 1.25);
  EXPECT_DOUBLE_EQ(forward.sync.max, 2.5);
  EXPECT_EQ(forward.sync.samples, 4);
  EXPECT_DOUBLE_EQ(forward.local->median, 1);
  EXPECT_DOUBLE_EQ(forward.own_local.median, 1.25);
  EXPECT_DOUBLE_EQ(forward.torch->median, 2);
  EXPECT_DOUBLE_EQ(forward.message, 0.25);
}

TEST(DeriveLayerTest, ComparesWithTheFasterLocalBatchNorm) {
  const LayerReport layer = Layer();
  EXPECT_EQ(layer.passes[0].FasterLocal(), SyncBnSubject::kLocal);
  EXPECT_DOUBLE_EQ(layer.passes[0].Ratio(), 1.25);
  EXPECT_DOUBLE_EQ(layer.passes[0].Beyond(), 1);
  EXPECT_THAT(layer.passes[0].ToTorch(), Optional(DoubleEq(1.6)));
  // Our own takes 1.5, oneDNN's 2.
  EXPECT_EQ(layer.passes[1].FasterLocal(), SyncBnSubject::kOwnLocal);
  EXPECT_DOUBLE_EQ(layer.passes[1].Ratio(), 2 / 1.5);
  EXPECT_DOUBLE_EQ(layer.passes[1].Beyond(), 1.75 / 1.5);
  // (1.25 + 2 - 0.5) / (1.25 + 1.5), where oneDNN's takes 1 + 2.
  EXPECT_EQ(layer.passes[2].pass, Pass::kBoth);
  EXPECT_EQ(layer.passes[2].FasterLocal(), SyncBnSubject::kOwnLocal);
  EXPECT_DOUBLE_EQ(layer.passes[2].Beyond(), 1);
  EXPECT_THAT(layer.passes[2].ToTorch(), Optional(DoubleEq(5 / 3.25)));
}

TEST(DeriveLayerTest, SplitsTheCallsAndSaysWhatTimersCost) {
  const LayerReport layer = Layer();
  EXPECT_DOUBLE_EQ(layer.passes[0].split.kernels, 0.76);
  EXPECT_DOUBLE_EQ(layer.passes[0].split.communication, 0.25);
  EXPECT_DOUBLE_EQ(layer.passes[0].split.wait, 0.2);
  EXPECT_DOUBLE_EQ(layer.passes[0].split.other, 0.04);
  EXPECT_DOUBLE_EQ(layer.passes[1].split.kernels, 1.6);
  EXPECT_DOUBLE_EQ(layer.passes[2].split.kernels, 2.36);
  EXPECT_DOUBLE_EQ(layer.passes[2].split.Sum(), 3.2);
  EXPECT_DOUBLE_EQ(layer.passes[0].timers, 1.3 / 1.25 - 1);
}

// Of four calls the fastest and the slowest are left out.
TEST(DeriveLayerTest, SplitsTheMiddleHalf) {
  MeasuredTurns turns = ExampleTurns(1, false);
  turns.subjects[2].forward[1].wait = 100;
  turns.subjects[2].forward[2].wait = 100;
  turns.subjects[2].forward[3].wait = 0.4;
  const LayerReport layer = DeriveLayer(SyncBnSettings(), kShape, turns);
  EXPECT_DOUBLE_EQ(layer.passes[0].split.wait, 0.3);
}

TEST(DeriveLayerTest, BoundsKernelsByTheCopy) {
  const LayerReport layer = Layer();
  // Two ranks read and write two tensors each, in a second.
  EXPECT_DOUBLE_EQ(layer.copy_bandwidth, 2 * 4 * kTensorBytes);
  ASSERT_THAT(layer.kernels, SizeIs(kTimedKernels));
  const double seconds[] = {0.25, 0.01, 0.5, 0.8, 0.8};
  const double tensors[] = {1, 0, 2, 2, 3};
  for (size_t i = 0; i < layer.kernels.size(); ++i) {
    const KernelReport& kernel = layer.kernels[i];
    EXPECT_EQ(kernel.kernel, static_cast<TimedKernel>(i));
    EXPECT_DOUBLE_EQ(kernel.seconds, seconds[i]);
    EXPECT_EQ(kernel.bytes, static_cast<int64_t>(tensors[i] * kTensorBytes));
    if (i == 1) {
      EXPECT_EQ(kernel.Fraction(), std::nullopt);
      continue;
    }
    EXPECT_THAT(kernel.bound_seconds, Optional(DoubleEq(0.25 * tensors[i])));
    EXPECT_THAT(kernel.Fraction(),
                Optional(DoubleEq(0.25 * tensors[i] / seconds[i])));
  }
}

TEST(DeriveLayerTest, CountsTheBytesOfMessages) {
  const LayerReport layer = Layer();
  EXPECT_EQ(layer.forward_message, 16 + 8 * 64);
  EXPECT_EQ(layer.backward_message, 8 * 64);
}

// Records follow one another in multiples of 16 bytes; sums are not padded.
TEST(DeriveLayerTest, CountsTheBytesOfMessagesOfAnOddNumberOfChannels) {
  for (const int64_t c : {1, 3, 63, 65}) {
    LayerShape shape = kShape;
    shape.c = c;
    const LayerReport layer =
        DeriveLayer(SyncBnSettings(), shape, ExampleTurns(1, true));
    EXPECT_EQ(layer.forward_message, 16 + 8 * c + 8);
    EXPECT_EQ(layer.backward_message, 8 * c);
  }
}

TEST(DeriveLayerTest, GoesWithoutWhatIsMissing) {
  MeasuredTurns turns = ExampleTurns(1, false);
  turns.subjects[0].forward.clear();
  turns.subjects[0].backward.clear();
  const LayerReport layer = DeriveLayer(SyncBnSettings(), kShape, turns);
  EXPECT_EQ(layer.passes[0].local, std::nullopt);
  EXPECT_EQ(layer.passes[0].FasterLocal(), SyncBnSubject::kOwnLocal);
  EXPECT_DOUBLE_EQ(layer.passes[0].Ratio(), 1);
  EXPECT_DOUBLE_EQ(layer.passes[0].Beyond(), 0.8);
  EXPECT_EQ(layer.passes[0].ToTorch(), std::nullopt);
  EXPECT_DOUBLE_EQ(layer.passes[0].sync.median, 1.25);
}

TEST(DeriveNetworkTest, HasSyncBatchNormsShareOfAStep) {
  const NetworkReport network = *ExampleSyncBnReport().network;
  EXPECT_EQ(network.batch, 16);
  EXPECT_DOUBLE_EQ(network.local.median, 0.8);
  EXPECT_DOUBLE_EQ(network.sync.median, 1);
  EXPECT_DOUBLE_EQ(network.Share(), 0.2);
  EXPECT_EQ(network.messages, 34);
  EXPECT_EQ(network.message_bytes, 62736);
  EXPECT_DOUBLE_EQ(network.split.communication, 0.25);
  EXPECT_NEAR(network.timers, 0.3, 1e-12);
}

TEST(AddNotesTest, NamesThePeerAndWhatIsMissingOnce) {
  SyncBnReport report = ExampleSyncBnReport();
  EXPECT_EQ(report.peer, "PyTorch 2.1 (python3); it is an example");
  EXPECT_THAT(report.missing, ElementsAre("local BN: no such type"));
  MeasuredTurns again;
  again.subjects = {
      {.subject = SyncBnSubject::kLocal, .missing = "no such type"},
      {.subject = SyncBnSubject::kTorch, .missing = "not there"}};
  AddNotes(again, report);
  EXPECT_THAT(report.missing,
              ElementsAre("local BN: no such type", "PyTorch: not there"));
}

TEST(SyncBnBarsOfTest, HasResNet18sShapesAtTwoRanks) {
  SyncBnReport report = ExampleSyncBnReport();
  std::vector<SyncBnBar> bars = BarsOf(report);
  ASSERT_THAT(bars, SizeIs(1));
  EXPECT_EQ(bars[0].shape, kShape);
  EXPECT_EQ(bars[0].against, SyncBnSubject::kOwnLocal);
  EXPECT_DOUBLE_EQ(bars[0].value, 1);
  EXPECT_TRUE(bars[0].Met());
  EXPECT_EQ(WhyNoBar(report), "");
  report.layers[0].passes[2].local->median = 2e-3;
  bars = BarsOf(report);
  EXPECT_EQ(bars[0].against, SyncBnSubject::kLocal);
  EXPECT_DOUBLE_EQ(bars[0].value, 2.75 / 2);
  EXPECT_FALSE(bars[0].Met());
}

TEST(SyncBnBarsOfTest, SaysWhyThereIsNone) {
  const SyncBnReport good = ExampleSyncBnReport();
  const auto why = [](const SyncBnReport& report) {
    EXPECT_THAT(BarsOf(report), IsEmpty());
    return WhyNoBar(report);
  };
  SyncBnReport report = good;
  report.settings.gpu = true;
  EXPECT_EQ(why(report), "it is for the CPU");
  report = good;
  report.settings.world_size = 3;
  EXPECT_EQ(why(report), "it is for 2 ranks");
  report = good;
  report.settings.type = DataType::kBFloat16;
  EXPECT_EQ(why(report), "it is for float32");
  report = good;
  report.origin.machine.cores = 1;
  EXPECT_EQ(why(report),
            "it is for ranks with a core each, and 2 ranks share 1");
  report = good;
  report.layers.erase(report.layers.begin());
  EXPECT_EQ(why(report), "it is for resnet18's shapes");
}

TEST(SyncBnCountWrongTest, CountsEverything) {
  SyncBnReport report = ExampleSyncBnReport();
  EXPECT_EQ(CountWrong(report), 0);
  report.layers[1].wrong = 3;
  report.network->wrong = 4;
  EXPECT_EQ(CountWrong(report), 7);
  MeasuredTurns turns = ExampleTurns(1, true);
  turns.subjects[0].wrong = 1;
  turns.subjects[5].wrong = 2;
  EXPECT_EQ(DeriveLayer(report.settings, kShape, turns).wrong, 3);
}

}  // namespace
}  // namespace lockstep::benchmarks
