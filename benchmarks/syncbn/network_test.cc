// Tests which network is trained, on which images, and the memory that it is
// said to need.
#include "benchmarks/syncbn/network.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/memory.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/syncbn/layer.h"
#include "benchmarks/syncbn/rank.h"
#include "benchmarks/syncbn/turn.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "syncbn/batch_norm.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Returns lenet_bn on images so small that its sizes can be worked out by hand.
TrainedNetwork SmallLenet() {
  return {.spec = "lenet_bn",
          .input = {.channels = 3, .height = 20, .width = 20, .classes = 7}};
}

TEST(ParseTrainedNetworkTest, TakesSizesOrTheNetworksOwn) {
  EXPECT_TRUE(ParseTrainedNetwork({.network = "none"})->empty());
  EXPECT_THAT(ArgumentsOf({.spec = ""}), ElementsAre("--network=none"));
  EXPECT_THAT(ArgumentsOf(*ParseTrainedNetwork({.network = "resnet18_d2l"})),
              ElementsAre("--network=resnet18_d2l", "--image_size=28x28",
                          "--in_channels=1", "--num_classes=10"));
  EXPECT_THAT(ArgumentsOf(*ParseTrainedNetwork(
                  {.network = "resnet50:width=8", .image_size = "0"})),
              ElementsAre("--network=resnet50:width=8", "--image_size=112x112",
                          "--in_channels=3", "--num_classes=10"));
  const absl::StatusOr<TrainedNetwork> trained =
      ParseTrainedNetwork({.network = "resnet18",
                           .image_size = "192x256",
                           .in_channels = 4,
                           .num_classes = 1000});
  ASSERT_THAT(trained, IsOk());
  EXPECT_EQ(trained->input.height, 192);
  EXPECT_EQ(ImageName(trained->input), "192x256");
  EXPECT_THAT(ArgumentsOf(*trained),
              ElementsAre("--network=resnet18", "--image_size=192x256",
                          "--in_channels=4", "--num_classes=1000"));
}

TEST(DescribeTrainedTest, RefusesWhatHasNoBatchNormOrDoesNotFit) {
  const std::pair<TrainedNetwork, const char*> cases[] = {
      {{.spec = "lenet"}, "--network=lenet: has no batch norm; networks with "},
      {{.spec = "vit"}, "--network=vit: has no batch norm; networks with "},
      {{.spec = "vgg"}, "--network=vgg: no such model; the models are lenet, "},
      {{.spec = "resnet18:depth=2"},
       "--network=resnet18:depth=2: resnet18: 'depth' is not an option; "},
      {{.spec = "lenet_bn", .input = {.height = 5, .width = 5}},
       "--network=lenet_bn: lenet_bn: "}};
  for (const auto& [trained, message] : cases) {
    EXPECT_THAT(DescribeTrained(trained),
                StatusIs(kInvalid, StartsWith(message)));
  }
}

TEST(BatchNormNetworkNamesTest, AreThoseThatCanBeTrained) {
  const std::vector<std::string> names =
      absl::StrSplit(BatchNormNetworkNames(), ", ");
  EXPECT_THAT(names, ElementsAre("lenet_bn", "resnet18_d2l", "resnet18",
                                 "resnet34", "resnet50"));
  for (const std::string& name : names) {
    EXPECT_THAT(
        DescribeTrained(
            {.spec = name, .input = FindNetworkEntry(name)->benchmark_input()}),
        IsOk());
  }
}

TEST(BatchNormShapesTest, AreTheInputsOfEveryBatchNorm) {
  EXPECT_THAT(BatchNormShapes(*DescribeTrained(SmallLenet()), Layout::kNchw),
              ElementsAre(ActivationShape{1, 20, 18 * 18, Layout::kNchw},
                          ActivationShape{1, 50, 5 * 5, Layout::kNchw}));
  // Each convolution is followed by one, but d2l's shortcuts have none.
  for (const auto& [spec, count] :
       {std::pair("resnet18_d2l", 17), {"resnet18", 20}, {"resnet50", 53}}) {
    const absl::StatusOr<Network> network = DescribeTrained(
        {.spec = spec, .input = FindNetworkEntry(spec)->benchmark_input()});
    ASSERT_THAT(network, IsOk());
    EXPECT_THAT(BatchNormShapes(*network, Layout::kNhwc), SizeIs(count));
  }
}

// The network has convolutions of 20 and 50 channels, each with batch norm and
// a pool of 2x2, and linear layers of 128 and 7.
TEST(TrainingBytesTest, AreThoseOfParametersAndOutputs) {
  const absl::StatusOr<Network> lenet = DescribeTrained(SmallLenet());
  ASSERT_THAT(lenet, IsOk());
  const int64_t parameters = (3 * 9 * 20 + 20) + 2 * 20 + (20 * 25 * 50 + 50) +
                             2 * 50 + (50 * 2 * 2 * 128 + 128) + (128 * 7 + 7);
  const int64_t largest = 20 * 18 * 18;
  const int64_t outputs =
      2 * largest + 20 * 9 * 9 + 2 * 50 * 5 * 5 + 50 * 2 * 2 + 128 + 7;
  EXPECT_EQ(
      TrainingBytes(*lenet, 6),
      3 * (kPlanBytes + 4 * (4 * parameters + 6 * (outputs + 2 * largest))));
  EXPECT_EQ(BatchNormBytes(*lenet, 6, DataType::kBFloat16),
            4 * 6 * 2 * (largest + 50 * 5 * 5));
  // The bytes do not fit 64 bits.
  EXPECT_EQ(TrainingBytes(*lenet, int64_t{1} << 60), int64_t{1} << 62);
}

// Takes a step of each replica, on one thread.
absl::Status TakeSteps(Communicator& group, const TrainedNetwork& trained,
                       int64_t batch) {
  SetComputeThreads(1);
  CallTiming timing = {.clock = SteadySeconds, .call = {}};
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::unique_ptr<SyncBnNetwork> network,
      SyncBnNetwork::Create(group, timing, trained, /*seed=*/3, batch));
  for (const SyncBnSubject subject :
       {SyncBnSubject::kLocal, SyncBnSubject::kSync, SyncBnSubject::kSplit}) {
    const SyncBnRequest request = {
        .subject = subject, .network = 1, .layer = {.n = batch}};
    LOCKSTEP_RETURN_IF_ERROR(network->Time(request).status());
  }
  return absl::OkStatus();
}

// The replicas' steps take at most the memory that is asked for, and more than
// half of it. No other test here has threads, or frees much memory that could
// be reused.
TEST(SyncBnNetworkMemoryTest, NeedsTheMemoryThatIsAskedFor) {
  struct Case {
    TrainedNetwork trained;
    int64_t batch;
  };
  const Case cases[] = {
      {{}, 8},
      {{.spec = "resnet18:width=16",
        .input = FindNetworkEntry("resnet18")->benchmark_input()},
       16},
      {{.spec = "resnet50:width=16",
        .input = FindNetworkEntry("resnet50")->benchmark_input()},
       8}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.trained.spec);
    const auto steps = [&one](Communicator& group) {
      return TakeSteps(group, one.trained, one.batch);
    };
    const absl::StatusOr<int64_t> grown =
        ResidentGrowth([] { return absl::OkStatus(); },
                       [&] { return RunOnThreads(1, GroupOptions(), steps); });
    ASSERT_THAT(grown, IsOk());
    const int64_t needed =
        TrainingBytes(*DescribeTrained(one.trained), one.batch);
    EXPECT_LT(*grown, needed);
    EXPECT_GT(*grown, needed / 2);
  }
}

}  // namespace
}  // namespace lockstep::benchmarks
