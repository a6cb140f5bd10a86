// Flags, shapes and sizes, and the order of turns.
#include "benchmarks/syncbn/plan.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "benchmarks/syncbn/measure.h"
#include "benchmarks/syncbn/turn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ParseShapeSetsTest, TakesEachOnceInTheOrderGiven) {
  EXPECT_THAT(
      ParseShapeSets("detection,resnet18,detection"),
      IsOkAndHolds(ElementsAre(ShapeSet::kDetection, ShapeSet::kResNet18)));
  EXPECT_THAT(ParseShapeSets(""), IsOkAndHolds(IsEmpty()));
  for (const ShapeSet set : {ShapeSet::kResNet18, ShapeSet::kResNet50,
                             ShapeSet::kMobileNet, ShapeSet::kDetection}) {
    EXPECT_THAT(ParseShapeSets(Name(set)), IsOkAndHolds(ElementsAre(set)));
  }
  EXPECT_THAT(ParseShapeSets("resnet18,vgg"),
              StatusIs(kInvalid,
                       "--shapes: 'vgg' is not one of resnet18, resnet50, "
                       "mobilenet, detection"));
}

TEST(ParseSyncBnFlagsTest, TakesWhatTheyName) {
  EXPECT_THAT(ParseLayout("nchw"), IsOkAndHolds(Layout::kNchw));
  EXPECT_THAT(ParseLayout("nhwc"), IsOkAndHolds(Layout::kNhwc));
  EXPECT_THAT(ParseActivationType("bfloat16"),
              IsOkAndHolds(DataType::kBFloat16));
  EXPECT_THAT(ParseNetwork("resnet18"), IsOkAndHolds(true));
  EXPECT_THAT(ParseNetwork("none"), IsOkAndHolds(false));
  EXPECT_THAT(ParseSyncBnPeers("torch"), IsOkAndHolds(true));
  EXPECT_THAT(ParseSyncBnPeers(""), IsOkAndHolds(false));
}

TEST(ParseSyncBnFlagsTest, NamesTheFlagOfAnythingElse) {
  EXPECT_THAT(ParseLayout("chwn"),
              StatusIs(kInvalid, "--layout: 'chwn' is not one of nhwc, nchw"));
  // The layers could, but the check could not tell right from wrong.
  EXPECT_THAT(ParseActivationType("float64"),
              StatusIs(kInvalid, HasSubstr("--dtype: 'float64'")));
  EXPECT_THAT(ParseNetwork("lenet"),
              StatusIs(kInvalid, HasSubstr("--network: 'lenet'")));
  EXPECT_THAT(ParseSyncBnPeers("apex"),
              StatusIs(kInvalid, HasSubstr("--peers: 'apex'")));
}

SyncBnSettings Settings(std::vector<ShapeSet> sets) {
  SyncBnSettings settings;
  settings.sets = std::move(sets);
  return settings;
}

TEST(ParseSyncBnBackendTest, TakesWhatBackendNameGives) {
  for (const char* name : {"processes", "threads", "nccl"}) {
    SyncBnSettings settings;
    ASSERT_THAT(ParseSyncBnBackend(name, settings), IsOk());
    EXPECT_EQ(BackendName(settings), name);
    EXPECT_EQ(settings.gpu, std::string(name) == "nccl");
  }
  SyncBnSettings settings;
  EXPECT_THAT(ParseSyncBnBackend("mpi", settings),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--backend: 'mpi' is not one of processes, threads, "
                       "nccl"));
}

TEST(LeaveOutForGpuTest, LeavesOutNetworkAndPyTorchOnGpusAlone) {
  SyncBnSettings settings;
  EXPECT_TRUE(LeaveOutForGpu(settings).empty());
  EXPECT_TRUE(settings.network);
  EXPECT_TRUE(settings.torch);
  settings.gpu = true;
  EXPECT_EQ(LeaveOutForGpu(settings).size(), 2u);
  EXPECT_FALSE(settings.network);
  EXPECT_FALSE(settings.torch);
  EXPECT_TRUE(LeaveOutForGpu(settings).empty());
}

TEST(ValidateSyncBnTest, NamesTheFlagThatIsWrong) {
  const SyncBnSettings good = Settings({ShapeSet::kResNet18});
  EXPECT_THAT(Validate(good), IsOk());
  SyncBnSettings bad = good;
  bad.world_size = 65;
  EXPECT_THAT(Validate(bad), StatusIs(kInvalid, HasSubstr("--world_size: 65")));
  bad = good;
  bad.per_rank_batch = -1;
  EXPECT_THAT(Validate(bad),
              StatusIs(kInvalid, HasSubstr("--per_rank_batch: -1")));
  bad = good;
  bad.rounds = -1;
  EXPECT_THAT(Validate(bad), StatusIs(kInvalid, HasSubstr("--rounds: -1")));
  bad = good;
  bad.seconds = 0;
  EXPECT_THAT(Validate(bad), StatusIs(kInvalid, HasSubstr("--seconds: 0")));
  bad = Settings({});
  EXPECT_THAT(Validate(bad), IsOk());
  bad.gpu = true;
  EXPECT_THAT(Validate(bad), StatusIs(kInvalid, HasSubstr("--backend=nccl")));
  bad.network = false;
  EXPECT_THAT(Validate(bad), StatusIs(kInvalid, HasSubstr("nothing is left")));
}

TEST(ShapesOfTest, HasTheShapesOfEverySetWithItsBatch) {
  const std::vector<LayerShape> shapes =
      ShapesOf(Settings({ShapeSet::kResNet18, ShapeSet::kDetection}));
  std::vector<std::string> names;
  for (const LayerShape& shape : shapes) {
    names.push_back(Name(shape));
    EXPECT_EQ(shape.n, shape.set == ShapeSet::kDetection ? 2 : 32);
  }
  EXPECT_THAT(names, ElementsAre("28x28x64", "14x14x128", "7x7x256", "4x4x512",
                                 "200x304x256", "100x152x256", "25x38x256"));
}

TEST(ShapesOfTest, TakesTheBatchThatIsAskedFor) {
  SyncBnSettings settings = Settings({ShapeSet::kMobileNet});
  settings.per_rank_batch = 3;
  EXPECT_THAT(ShapesOf(settings), SizeIs(4));
  for (const LayerShape& shape : ShapesOf(settings)) EXPECT_EQ(shape.n, 3);
  EXPECT_EQ(NetworkBatch(settings), 3);
  settings.per_rank_batch = 0;
  EXPECT_EQ(NetworkBatch(settings), 16);
}

TEST(TensorBytesTest, CountsElementsOfTheType) {
  SyncBnSettings settings = Settings({});
  const LayerShape shape = {ShapeSet::kResNet18, 2, 3, 5, 7};
  EXPECT_EQ(TensorBytes(settings, shape), 2 * 3 * 5 * 7 * 4);
  settings.type = DataType::kBFloat16;
  EXPECT_EQ(TensorBytes(settings, shape), 2 * 3 * 5 * 7 * 2);
  settings.torch = false;
  settings.world_size = 3;
  EXPECT_EQ(MemoryNeeded(settings, shape), 3 * 8 * 420);
  settings.torch = true;
  EXPECT_EQ(MemoryNeeded(settings, shape), 3 * 14 * 420);
}

TEST(CheckSyncBnMemoryTest, RefusesAShapeOrTheNetworkThatIsTooLarge) {
  SyncBnSettings settings = Settings({ShapeSet::kResNet18});
  const int64_t layers =
      MemoryNeeded(settings, {ShapeSet::kResNet18, 32, 28, 28, 64});
  const int64_t network = NetworkMemoryNeeded(settings);
  EXPECT_EQ(network, 2 * 3 * (int64_t{120 + 16 * 4} << 20));
  ASSERT_GT(network, layers);
  EXPECT_THAT(CheckMemory(settings, network), IsOk());
  EXPECT_THAT(
      CheckMemory(settings, network - 1),
      StatusIs(kInvalid,
               HasSubstr("--per_rank_batch: 16 images of 28x28, to train "
                         "ResNet-18 on 2 ranks need 1104 MiB, and there is")));
  EXPECT_THAT(CheckMemory(settings, layers - 1),
              StatusIs(kInvalid, HasSubstr("--per_rank_batch: 32 images of "
                                           "28x28x64 on 2 ranks need ")));
  settings.network = false;
  EXPECT_THAT(CheckMemory(settings, layers), IsOk());
  settings.network = true;
  settings.sets.clear();
  settings.per_rank_batch = 1 << 20;
  EXPECT_THAT(CheckMemory(settings, int64_t{1} << 40),
              StatusIs(kInvalid, HasSubstr("--per_rank_batch: 1048576 ")));
}

TEST(SyncBnTimedIterationsTest, AreFewerForLargerTensors) {
  const SyncBnSettings settings = Settings({});
  EXPECT_EQ(TimedIterations(settings, {ShapeSet::kResNet18, 1, 1, 2, 1}), 100);
  // 8 tensors of 1 MiB are moved in an iteration.
  EXPECT_EQ(TimedIterations(settings, {ShapeSet::kResNet18, 1, 512, 512, 1}),
            64);
  EXPECT_EQ(TimedIterations(settings, {ShapeSet::kDetection, 2, 200, 304, 256}),
            1);
}

TEST(SpecOfTest, HasAllThatMakesTheInputs) {
  SyncBnSettings settings = Settings({});
  settings.seed = 9;
  settings.layout = Layout::kNchw;
  const LayerSpec spec = SpecOf(settings, {ShapeSet::kResNet18, 2, 3, 5, 7});
  EXPECT_EQ(spec.shape(), (ActivationShape{2, 7, 15, Layout::kNchw}));
  EXPECT_EQ(spec.seed, 9u);
  LayerSpec other = spec;
  EXPECT_EQ(other, spec);
  other.seed = 8;
  EXPECT_FALSE(other == spec);
}

// The order of turns, with ranks and a clock that are made up.

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
  for (const SyncBnMeasured& subject : measured->subjects) {
    EXPECT_THAT(subject.forward, SizeIs(2 * 100));
    EXPECT_THAT(subject.backward, SizeIs(2 * 100));
    EXPECT_EQ(subject.wrong, 2);
    EXPECT_EQ(subject.note, "who");
  }
  EXPECT_EQ(requests_[0].layer.c, 64);
  EXPECT_EQ(requests_[0].warmup, 2);
  EXPECT_EQ(requests_[0].network, 0);
}

TEST_F(SyncBnMeasureTest, WarmsLargeTensorsUpOnce) {
  ASSERT_THAT(Layer(/*n=*/200), IsOk());
  for (size_t i = 0; i < requests_.size(); ++i) {
    EXPECT_EQ(requests_[i].iterations, 1);
    EXPECT_EQ(requests_[i].warmup, i < 7 ? 1 : 0);
  }
}

TEST_F(SyncBnMeasureTest, LeavesOutPyTorchUnlessAsked) {
  settings_.torch = false;
  ASSERT_THAT(Layer(), IsOk());
  EXPECT_THAT(turns_, SizeIs(2 * 6));
}

TEST_F(SyncBnMeasureTest, GoesOnWithoutWhatIsMissing) {
  missing_ = SyncBnSubject::kTorch;
  const absl::StatusOr<MeasuredTurns> measured = Layer();
  ASSERT_THAT(measured, IsOk());
  EXPECT_THAT(turns_, SizeIs(7 + 6));
  const SyncBnMeasured* const torch = measured->Find(SyncBnSubject::kTorch);
  ASSERT_NE(torch, nullptr);
  EXPECT_EQ(torch->missing, "not here");
  EXPECT_THAT(torch->forward, IsEmpty());
}

TEST_F(SyncBnMeasureTest, FailsWithATurn) {
  failing_ = SyncBnSubject::kSync;
  EXPECT_THAT(Layer(),
              StatusIs(absl::StatusCode::kAborted, "SyncBN: it broke"));
}

TEST_F(SyncBnMeasureTest, StopsWhenTheShapesPartOfTheTimeIsOver) {
  settings_.rounds = 0;
  settings_.network = false;
  settings_.seconds = 120;  // 30 for each of four shapes; a round takes 7.
  const absl::StatusOr<MeasuredTurns> measured = Layer();
  ASSERT_THAT(measured, IsOk());
  EXPECT_EQ(measured->rounds, 4);
}

TEST_F(SyncBnMeasureTest, HasThreeRoundsHoweverLongTheyTake) {
  settings_.rounds = 0;
  settings_.seconds = 0.1;
  const absl::StatusOr<MeasuredTurns> measured = Layer();
  ASSERT_THAT(measured, IsOk());
  EXPECT_EQ(measured->rounds, 3);
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

}  // namespace
}  // namespace lockstep::benchmarks
