// Tests the order of turns, and the formulas on numbers that are easy to check
// by hand.
#include "benchmarks/syncbn/results.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/syncbn/example_turns.h"
#include "benchmarks/syncbn/settings.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/networks/network.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::SizeIs;

// The order of turns, with fake ranks and a fake clock.

class SyncBnMeasureTest : public testing::Test {
 protected:
  SyncBnMeasureTest() {
    settings_.sets = {ShapeSet::kResNet18};
    settings_.rounds = 2;
  }

  absl::StatusOr<TeamTurn> Take(const SyncBnRequest& request) {
    turns_.push_back(Name(request.subject));
    requests_.push_back(request);
    now_ += 1;
    if (request.subject == failing_) return absl::AbortedError("it broke");
    TeamTurn turn;
    if (request.subject == missing_) {
      turn.missing = "not here";
      return turn;
    }
    turn.forward.resize(static_cast<size_t>(request.iterations));
    if (request.network == 0) turn.backward = turn.forward;
    turn.wrong = 1;
    turn.note = "who";
    return turn;
  }

  absl::StatusOr<MeasuredTurns> Layer(int64_t n = 1) {
    return MeasureLayer(
        settings_, {ShapeSet::kResNet18, n, 28, 28, 64},
        [this](const SyncBnRequest& request) { return Take(request); },
        [this] { return now_; });
  }
  absl::StatusOr<MeasuredTurns> Network() {
    return MeasureNetwork(
        settings_,
        [this](const SyncBnRequest& request) { return Take(request); },
        [this] { return now_; });
  }

  SyncBnSettings settings_;
  std::optional<SyncBnSubject> failing_, missing_;
  double now_ = 100;
  std::vector<std::string> turns_;
  std::vector<SyncBnRequest> requests_;
};

TEST_F(SyncBnMeasureTest, GoesBackEverySecondRound) {
  const absl::StatusOr<MeasuredTurns> measured = Layer();
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(turns_, ElementsAre("local BN", "own local BN", "SyncBN",
                                  "SyncBN with timers", "message", "copy",
                                  "PyTorch",  //
                                  "own local BN", "local BN", "PyTorch", "copy",
                                  "message", "SyncBN with timers", "SyncBN"));
  EXPECT_EQ(measured->rounds, 2);
  ASSERT_THAT(measured->subjects, SizeIs(7));
  for (const TeamTurn& subject : measured->subjects) {
    EXPECT_THAT(subject.forward, SizeIs(2 * 100));
    EXPECT_THAT(subject.backward, SizeIs(2 * 100));
    EXPECT_EQ(subject.wrong, 2);
    EXPECT_EQ(subject.note, "who");
  }
  EXPECT_EQ(requests_[0].layer.c, 64);
  EXPECT_EQ(requests_[0].warmup, 2);
  EXPECT_EQ(requests_[0].network, 0);
}

// On GPUs there is a warm-up before every turn, because a layer's first call
// allocates.
TEST_F(SyncBnMeasureTest, WarmsLargeTensorsUpOnce) {
  ASSERT_THAT(Layer(/*n=*/200), IsOk());
  settings_.gpu = true;
  ASSERT_THAT(Layer(/*n=*/200), IsOk());
  for (size_t i = 0; i < requests_.size(); ++i) {
    EXPECT_EQ(requests_[i].iterations, 1);
    EXPECT_EQ(requests_[i].warmup, i < 7 ? 1 : i < 14 ? 0 : 2);
  }
}

TEST_F(SyncBnMeasureTest, GoesOnWithoutWhatIsMissingAndFailsWithATurn) {
  missing_ = SyncBnSubject::kTorch;
  const absl::StatusOr<MeasuredTurns> measured = Layer();
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(turns_, SizeIs(7 + 6));
  const TeamTurn* const torch = measured->Find(SyncBnSubject::kTorch);
  ASSERT_NE(torch, nullptr);
  EXPECT_EQ(torch->missing, "not here");
  EXPECT_THAT(torch->forward, IsEmpty());
  turns_.clear();
  settings_.torch = false;  // Without it, PyTorch gets no turn at all.
  ASSERT_THAT(Layer(), IsOk());
  EXPECT_THAT(turns_, SizeIs(2 * 6));
  failing_ = SyncBnSubject::kSync;
  EXPECT_THAT(Layer(),
              StatusIs(absl::StatusCode::kAborted, "SyncBN: it broke"));
}

TEST_F(SyncBnMeasureTest, StopsWhenTheShapesPartOfTheTimeIsOver) {
  settings_.rounds = 0;
  settings_.network.spec.clear();
  // Each of four shapes has a quarter of the time; a round takes 7 seconds.
  // There are at least three rounds.
  for (const auto& [seconds, rounds] : {std::pair(120.0, 4), {0.1, 3}}) {
    settings_.seconds = seconds;
    const absl::StatusOr<MeasuredTurns> measured = Layer();
    ASSERT_THAT(measured, IsOk());
    EXPECT_EQ(measured->rounds, rounds);
  }
}

TEST_F(SyncBnMeasureTest, TrainsTheNetworkInTurns) {
  settings_.seed = 7;
  const absl::StatusOr<MeasuredTurns> measured = Network();
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(turns_,
              ElementsAre("local BN", "SyncBN", "SyncBN with timers",  //
                          "SyncBN", "local BN", "SyncBN with timers"));
  for (const SyncBnRequest& request : requests_) {
    EXPECT_EQ(request.network, 1);
    EXPECT_EQ(request.layer.n, 16);
    EXPECT_EQ(request.layer.seed, 7u);
    EXPECT_EQ(request.iterations, 1);
  }
}

// The formulas.

constexpr double kTensorBytes = 32 * 28 * 28 * 64 * 4;

LayerReport Layer(double seconds = 1) {
  return DeriveLayer(SyncBnSettings(), kShape, ExampleTurns(seconds, true));
}

// The golden text has the numbers. This test checks what that text rounds or
// omits.
TEST(DeriveLayerTest, HasMediansRatiosAndWhereCallsGo) {
  const LayerReport layer = Layer();
  const PassReport& forward = layer.passes[0];
  EXPECT_EQ(forward.sync, (CallSpread{1.25, 0.625, 1.25, 0.625, 2.5, 4}));
  EXPECT_THAT(forward.ToTorch(), Optional(DoubleEq(1.6)));
  EXPECT_DOUBLE_EQ(forward.timers, 1.3 / 1.25 - 1);
  // Our own takes 1.5, oneDNN's 2. For both passes: (1.25 + 2 - 0.5) / (1.25 +
  // 1.5).
  EXPECT_DOUBLE_EQ(layer.passes[1].Beyond(), 1.75 / 1.5);
  EXPECT_DOUBLE_EQ(layer.passes[2].Beyond(), 1);
  EXPECT_DOUBLE_EQ(layer.passes[2].split.Kernels(), 2.36);
  EXPECT_DOUBLE_EQ(layer.passes[2].split.Sum(), 3.2);
}

// The fastest and the slowest of four calls are left out.
TEST(DeriveLayerTest, SplitsTheMiddleHalf) {
  MeasuredTurns turns = ExampleTurns(1, false);
  turns.subjects[2].forward[1].split.wait = 100;
  turns.subjects[2].forward[2].split.wait = 100;
  turns.subjects[2].forward[3].split.wait = 0.4;
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

// Records are padded to multiples of 16 bytes; sums are not padded.
TEST(DeriveLayerTest, CountsTheBytesOfMessages) {
  for (const int64_t c : {1, 3, 63, 64, 65}) {
    LayerShape shape = kShape;
    shape.c = c;
    const LayerReport layer =
        DeriveLayer(SyncBnSettings(), shape, ExampleTurns(1, true));
    EXPECT_EQ(layer.forward_message, 16 + 8 * c + 8 * (c % 2));
    EXPECT_EQ(layer.backward_message, 8 * c);
  }
}

// The machine is twice as slow in every second round. In these rounds SyncBN
// takes 1% longer than local BN, in the other rounds 3% longer, in the last
// round 10%.
TEST(DeriveNetworkTest, ComparesStepsOfTheSameRound) {
  MeasuredTurns turns = NetworkTurns();
  turns.rounds = 5;
  turns.subjects[0].forward = {Call(1), Call(2), Call(1), Call(2), Call(1)};
  turns.subjects[1].forward = {Call(1.03), Call(2.02), Call(1.03), Call(2.02),
                               Call(1.1)};
  const NetworkReport network = DeriveNetwork(SyncBnSettings(), turns);
  EXPECT_NEAR(network.PercentOverLocal(), 3, 1e-9);
  EXPECT_NEAR(network.ratio.min, 1.01, 1e-9);
  EXPECT_NEAR(network.ratio.max, 1.1, 1e-9);
  EXPECT_EQ(network.ratio.samples, 5);
  // The medians of all steps give another ratio.
  EXPECT_NEAR(network.sync.median / network.local.median, 1.1, 1e-9);
}

// Three steps in each of two rounds: the median steps take 4 and 2 with local
// BN, 5 and 3 with SyncBN.
TEST(DeriveNetworkTest, TakesTheMedianStepOfATurn) {
  MeasuredTurns turns = NetworkTurns();
  turns.rounds = 2;
  turns.subjects[0].forward = {Call(4), Call(9), Call(1),
                               Call(2), Call(2), Call(7)};
  turns.subjects[1].forward = {Call(5), Call(1), Call(6),
                               Call(3), Call(8), Call(1)};
  const NetworkReport network = DeriveNetwork(SyncBnSettings(), turns);
  EXPECT_DOUBLE_EQ(network.ratio.min, 1.25);
  EXPECT_DOUBLE_EQ(network.ratio.max, 1.5);
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
