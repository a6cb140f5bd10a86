// Tests flags, shapes and sizes.
#include "benchmarks/syncbn/settings.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "benchmarks/syncbn/network.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"

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

}  // namespace
}  // namespace lockstep::benchmarks
