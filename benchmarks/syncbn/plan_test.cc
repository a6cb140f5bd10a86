// Tests flags, shapes and sizes, the combination of several ranks' answers, and
// the order of turns.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/rank_service.h"
#include "benchmarks/syncbn/network.h"
#include "benchmarks/syncbn/turn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "syncbn/batch_norm.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// The command's tests give each flag its values.
TEST(ParseSyncBnFlagsTest, TakesWhatTheyName) {
  EXPECT_THAT(
      ParseShapeSets("detection,resnet18_d2l,detection"),
      IsOkAndHolds(ElementsAre(ShapeSet::kDetection, ShapeSet::kResNet18)));
  EXPECT_THAT(ParseShapeSets(""), IsOkAndHolds(IsEmpty()));
  for (const ShapeSet set : {ShapeSet::kResNet18, ShapeSet::kResNet50,
                             ShapeSet::kMobileNet, ShapeSet::kDetection}) {
    EXPECT_THAT(ParseShapeSets(Name(set)), IsOkAndHolds(ElementsAre(set)));
  }
  EXPECT_THAT(ParseSyncBnPeers(""), IsOkAndHolds(false));
  for (const char* name : {"processes", "threads", "nccl"}) {
    SyncBnSettings settings;
    ASSERT_THAT(ParseSyncBnBackend(name, settings), IsOk());
    EXPECT_EQ(BackendName(settings), name);
    EXPECT_EQ(settings.gpu, std::string(name) == "nccl");
  }
}

SyncBnSettings Settings(std::vector<ShapeSet> sets) {
  return {.sets = std::move(sets)};
}

TEST(ShapesOfTest, HasTheShapesOfEverySetWithItsBatchOrTheGivenOne) {
  const std::vector<LayerShape> shapes =
      ShapesOf(Settings({ShapeSet::kResNet18, ShapeSet::kDetection}));
  std::vector<std::string> names;
  for (const LayerShape& shape : shapes) {
    names.push_back(Name(shape));
    EXPECT_EQ(shape.n, shape.set == ShapeSet::kDetection ? 2 : 32);
  }
  EXPECT_THAT(names, ElementsAre("28x28x64", "14x14x128", "7x7x256", "4x4x512",
                                 "200x304x256", "100x152x256", "25x38x256"));
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
  const absl::StatusOr<Network> described = DescribeTrained(settings.network);
  ASSERT_THAT(described, IsOk());
  const int64_t network = NetworkMemoryNeeded(settings, *described);
  EXPECT_EQ(network, 2 * TrainingBytes(*described, 16));
  ASSERT_GT(network, layers);
  EXPECT_THAT(CheckMemory(settings, network), IsOk());
  EXPECT_THAT(
      CheckMemory(settings, network - 1),
      StatusIs(kInvalid,
               HasSubstr("--per_rank_batch: 16 images of 28x28, to train "
                         "resnet18_d2l on 2 ranks need ")));
  EXPECT_THAT(CheckMemory(settings, layers - 1),
              StatusIs(kInvalid, HasSubstr("--per_rank_batch: 32 images of "
                                           "28x28x64 on 2 ranks need ")));
  settings.network.spec.clear();
  EXPECT_THAT(CheckMemory(settings, layers), IsOk());
  settings.network = {.spec = "resnet18",
                      .input = FindNetworkEntry("resnet18")->benchmark_input()};
  EXPECT_THAT(CheckMemory(settings, network),
              StatusIs(kInvalid, HasSubstr(" 16 images of 112x112, to train "
                                           "resnet18 on 2 ranks need ")));
  settings.gpu = true;  // The host has only the batch norms.
  EXPECT_EQ(NetworkMemoryNeeded(settings, *described),
            2 * BatchNormBytes(*described, 16, DataType::kFloat32));
  settings.gpu = false;
  settings.sets.clear();
  settings.per_rank_batch = 1 << 20;
  EXPECT_THAT(CheckMemory(settings, int64_t{1} << 40),
              StatusIs(kInvalid, HasSubstr("--per_rank_batch: 1048576 ")));
}

TEST(SyncBnTimedIterationsTest, AreFewerForLargerTensors) {
  const SyncBnSettings settings = Settings({});
  EXPECT_EQ(TimedIterations(settings, {ShapeSet::kResNet18, 1, 1, 2, 1}), 100);
  // An iteration moves 8 tensors of 1 MiB.
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

// The combination of several ranks' answers.

// Returns a call from `begin` to `end` with one message in it.
CallTimes Call(double begin, double end, double entered, double left) {
  return {.begin = begin,
          .end = end,
          .kernels = {1, 0, 0.5, 0, 0},
          .messages = {{entered, left, 24}}};
}

RankTurn Turn(const CallTimes& call) { return {.forward = {call}, .wrong = 2}; }

TEST(RankTurnTest, TravelsWhole) {
  RankTurn turn = Turn(Call(10, 15, 12, 13));
  turn.backward = {Call(1, 2, 1.25, 1.5), CallTimes()};
  turn.note = "who";
  turn.gpu = "where";
  turn.shared_gpu = 1;
  turn.sm_mhz = 3;
  turn.host_seconds = 4;
  turn.missing = "why";
  EXPECT_THAT(Decode<RankTurn>(Encode(turn)), IsOkAndHolds(turn));
  const SyncBnRequest request = {
      .subject = SyncBnSubject::kCopy, .layer = {.c = 5}, .iterations = 7};
  EXPECT_THAT(Decode<SyncBnRequest>(Encode(request)), IsOkAndHolds(request));
}

TEST(OrMissingTest, IsForWhatALayerLacksAlone) {
  const absl::StatusOr<RankTurn> missing =
      OrMissing(absl::UnimplementedError("no such type"));
  ASSERT_THAT(missing, IsOk());
  EXPECT_EQ(missing->missing, "no such type");
  EXPECT_THAT(OrMissing(absl::AbortedError("it broke")),
              StatusIs(absl::StatusCode::kAborted, "it broke"));
  RankTurn right = {.wrong = 3};
  EXPECT_THAT(OrMissing(right), IsOkAndHolds(right));
}

// Rank 0 enters at 12, rank 1 at 14. They leave at 15 and 16.
TEST(CombineTurnsTest, TellsWaitingFromCommunication) {
  const std::vector<RankTurn> turns = {Turn(Call(10, 17, 12, 15)),
                                       Turn(Call(11, 20, 14, 16))};
  const absl::StatusOr<TeamTurn> all = CombineTurns(turns);
  ASSERT_THAT(all, IsOk());
  ASSERT_THAT(all->forward, SizeIs(1));
  const TeamCall& call = all->forward[0];
  EXPECT_EQ(call.seconds, 9);     // Rank 1's.
  EXPECT_EQ(call.split.wait, 1);  // (14 - 12 + 0) / 2.
  EXPECT_EQ(call.split.communication, 1.5);
  EXPECT_EQ(call.split.kernels[0], 1);
  EXPECT_EQ(call.split.kernels[2], 0.5);
  // All parts add up to the mean of 7 and 9.
  EXPECT_EQ(call.split.Sum(), 8);
  EXPECT_EQ(call.messages, 1);
  EXPECT_EQ(call.message_bytes, 24);
  EXPECT_EQ(all->wrong, 4);
  // A single rank does not wait.
  const absl::StatusOr<TeamTurn> one = CombineTurns(std::span(turns).first(1));
  ASSERT_THAT(one, IsOk());
  EXPECT_EQ(one->forward[0].split.wait, 0);
  EXPECT_EQ(one->forward[0].split.communication, 3);
}

TEST(CombineTurnsTest, LacksWhatOneRankLacksAndRefusesDifferentTurns) {
  std::vector<RankTurn> turns = {Turn(CallTimes()), RankTurn()};
  turns[1].missing = "why";
  const absl::StatusOr<TeamTurn> all = CombineTurns(turns);
  ASSERT_THAT(all, IsOk());
  EXPECT_EQ(all->missing, "why");
  EXPECT_THAT(all->forward, IsEmpty());
  turns[1].missing.clear();
  EXPECT_THAT(CombineTurns(turns),
              StatusIs(absl::StatusCode::kDataLoss,
                       "one rank timed 1 calls, another 0"));
  turns[1] = Turn(Call(10, 17, 12, 15));
  EXPECT_THAT(CombineTurns(turns),
              StatusIs(absl::StatusCode::kDataLoss,
                       "one rank saw 0 messages, another 1"));
}

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

}  // namespace
}  // namespace lockstep::benchmarks
