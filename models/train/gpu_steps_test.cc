// Tests that ranks on GPUs take one rank's steps, and that streams wait for
// each other where they must. Uses the stand-in, which can choose the order in
// which streams run.
#include "models/train/gpu_steps.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cuda/batch_copy.h"
#include "models/cuda/convolution.h"
#include "models/cuda/cuda_replica.h"
#include "models/cuda/loss_scale.h"
#include "models/cuda/step_numbers.h"
#include "models/cuda/test_vector.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/reference/network_inputs.h"
#include "models/train/gpu_test_rank.h"
#include "standin/control.h"

namespace lockstep {
namespace {

using standin::Order;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kSamples = 8;
constexpr int kSteps = 2;
constexpr float kLearningRate = 0.05f;

Network Described(const std::string& spec) {
  absl::StatusOr<Network> network = CreateNetwork(
      spec, {.channels = 1, .height = 16, .width = 16, .classes = 4});
  EXPECT_THAT(network, IsOk());
  return *std::move(network);
}

// The results of one rank.
struct Outcome {
  std::vector<float> values;  // The parameters after all steps.
  int64_t host_waits = 0;     // In all steps after the first.
  LossScale loss_scale;       // After all steps.
};

struct TrainOptions {
  Order order = Order::kAtOnce;
  int64_t bucket_bytes = 4096;
  // The planted bug: the steps join a stream on which the gradients' group
  // makes no calls, so that sums and computation do not wait for each other.
  bool joins_another_stream = false;
  // The planted bug: rank 1 begins each sum of gradients one sum later.
  bool begins_sums_late = false;
  ConvolutionPrecision precision = ConvolutionPrecision::kFloat32;
  // The sample of the global batch that has one pixel beyond float16; -1: none.
  int64_t huge_sample = -1;
};

// A group of which each call begins with the next call, or with Wait.
class LateGroup : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  bool enqueues() const override { return true; }
  absl::Status Run(const Collective& call) override {
    const std::optional<Collective> earlier = std::exchange(late_, call);
    return earlier.has_value() ? inner().Run(*earlier) : absl::OkStatus();
  }
  absl::Status Wait() override {
    const std::optional<Collective> last = std::exchange(late_, std::nullopt);
    if (last.has_value()) LOCKSTEP_RETURN_IF_ERROR(inner().Run(*last));
    return inner().Wait();
  }

 private:
  std::optional<Collective> late_;
};

// One rank, with its streams and groups.
class Rank {
 public:
  static absl::StatusOr<std::unique_ptr<Rank>> Create(
      Communicator& control, const Network& network,
      const TrainOptions& options) {
    auto rank = std::make_unique<Rank>();
    LOCKSTEP_ASSIGN_OR_RETURN(
        rank->parts_,
        CreateGpuTestRank(control, network,
                          {.seed = 1, .precision = options.precision}));
    GpuTestRank& parts = rank->parts_;
    rank->late_ = std::make_unique<LateGroup>(*parts.gradients);
    if (options.begins_sums_late && control.rank() == 1) {
      rank->gradients_ = rank->late_.get();
    } else {
      rank->gradients_ = parts.gradients.get();
    }
    const Stream& joined =
        options.joins_another_stream ? parts.another : parts.communication;
    LOCKSTEP_ASSIGN_OR_RETURN(
        rank->steps_, GpuSteps::Create(*parts.replica, *rank->gradients_,
                                       {.compute = parts.compute.get(),
                                        .communication = joined.get()},
                                       options.bucket_bytes));
    return rank;
  }

  absl::StatusOr<Outcome> Train(std::span<const float> images,
                                std::span<const int32_t> labels) {
    images_.emplace(std::vector<float>(images.begin(), images.end()));
    labels_.emplace(std::vector<int32_t>(labels.begin(), labels.end()));
    TestVector<StepNumbers> numbers(
        std::vector<StepNumbers>{{.learning_rate = kLearningRate}});
    const DeviceBatch shard = {
        {.images = images_->span(), .labels = labels_->span()}, numbers.data()};
    Outcome outcome;
    for (int step = 0; step < kSteps; ++step) {
      const int64_t before = standin::CountsOfThisThread().host_waits;
      LOCKSTEP_RETURN_IF_ERROR(steps_->Enqueue(shard, kSamples));
      if (step > 0) {
        outcome.host_waits += standin::CountsOfThisThread().host_waits - before;
      }
    }
    LOCKSTEP_RETURN_IF_ERROR(gradients_->Wait());
    LOCKSTEP_RETURN_IF_ERROR(parts_.norms->Wait());
    CudaReplica& replica = *parts_.replica;
    Parameters parameters = CreateParameters(replica.network());
    Buffers buffers = CreateBuffers(replica.network());
    LOCKSTEP_RETURN_IF_ERROR(replica.Download(parameters, buffers));
    const std::span<float> values = parameters.values();
    outcome.values.assign(values.begin(), values.end());
    LOCKSTEP_ASSIGN_OR_RETURN(outcome.loss_scale, replica.DownloadLossScale());
    return outcome;
  }

 private:
  // The groups end before the memory that their calls use is freed.
  std::optional<TestVector<float>> images_;
  std::optional<TestVector<int32_t>> labels_;
  GpuTestRank parts_;
  std::unique_ptr<LateGroup> late_;
  Communicator* gradients_ = nullptr;
  std::unique_ptr<GpuSteps> steps_;
};

// Trains on ranks that share the batch as `deal` says, and sets every rank's
// outcome.
std::vector<absl::Status> TrainRanks(const std::string& spec,
                                     const std::vector<int64_t>& deal,
                                     const TrainOptions& options,
                                     std::vector<Outcome>& outcomes) {
  const Network network = Described(spec);
  RandomSamples samples = RandomBatchOf(network, 1, kSamples);
  if (options.huge_sample >= 0) {
    samples.images[options.huge_sample * network.input_shape().size()] = 1e6f;
  }
  const auto ranks = static_cast<int>(deal.size());
  standin::SetDevices({.count = ranks});
  standin::SetSchedule({.order = options.order});
  outcomes.resize(deal.size());
  auto statuses = RunRanks(
      Backend::kThreads, ranks, [&](Communicator& control) -> absl::Status {
        const int64_t begin = std::accumulate(
            deal.begin(), deal.begin() + control.rank(), int64_t{0});
        const int64_t count = deal[control.rank()];
        const int64_t size = network.input_shape().size();
        LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Rank> rank,
                                  Rank::Create(control, network, options));
        LOCKSTEP_ASSIGN_OR_RETURN(
            outcomes[control.rank()],
            rank->Train(
                std::span(samples.images).subspan(begin * size, count * size),
                std::span(samples.labels).subspan(begin, count)));
        return absl::OkStatus();
      });
  standin::SetSchedule({});
  standin::SetDevices({});
  return statuses;
}

// The same, if all ranks succeed.
std::vector<Outcome> Train(const std::string& spec,
                           const std::vector<int64_t>& deal,
                           const TrainOptions& options = {}) {
  std::vector<Outcome> outcomes;
  EXPECT_THAT(TrainRanks(spec, deal, options, outcomes), Each(IsOk()));
  return outcomes;
}

// Returns the distance of two runs' parameters, relative to the distance that
// the steps have moved them.
double Distance(const std::string& spec, const std::vector<float>& a,
                const std::vector<float>& b) {
  const Parameters start = CreateParameters(Described(spec), 1);
  double apart = 0, moved = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    apart += std::pow(a[i] - b[i], 2);
    moved += std::pow(b[i] - start.values()[i], 2);
  }
  return std::sqrt(apart / moved);
}

// conformance/network has the bounds of single steps. Rounding moves these runs
// by about 1e-6 of their way; a gradient that is not summed moves them by more
// than a tenth.
constexpr double kRounding = 1e-4;

class GpuStepsTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Networks, GpuStepsTest,
                         testing::Values("lenet_bn", "resnet18_d2l:width=4"),
                         [](const auto& info) {
                           const std::string spec = info.param;
                           return spec.substr(0, spec.find('_'));
                         });

TEST_P(GpuStepsTest, RanksTakeOneRanksSteps) {
  const std::string spec = GetParam();
  const std::vector<float> one = Train(spec, {8})[0].values;
  for (const std::vector<int64_t>& deal :
       std::vector<std::vector<int64_t>>{{6, 2}, {3, 0, 5}}) {
    for (const int64_t bucket_bytes : {int64_t{1}, GpuSteps::kBucketBytes}) {
      const std::vector<Outcome> ranks =
          Train(spec, deal, {.bucket_bytes = bucket_bytes});
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        EXPECT_EQ(ranks[rank].values, ranks[0].values);
        // SyncBatchNorm of a rank without samples waits once a layer.
        if (deal[rank] > 0) {
          EXPECT_EQ(ranks[rank].host_waits, 0);
        }
      }
      EXPECT_LT(Distance(spec, ranks[0].values, one), kRounding);
    }
  }
  // The control: another batch.
  EXPECT_GT(Distance(spec, Train(spec, {7})[0].values, one), 0.1);
}

TEST_P(GpuStepsTest, EveryOrderOfStreamsGivesTheSameBits) {
  const std::vector<float> want = Train(GetParam(), {5, 3})[0].values;
  for (const Order order :
       {Order::kOldestStreamFirst, Order::kNewestStreamFirst}) {
    for (const Outcome& rank : Train(GetParam(), {5, 3}, {.order = order})) {
      EXPECT_EQ(rank.values, want);
    }
  }
}

// The planted bug shows in every order: sums of gradients that are not computed
// yet, or an update with gradients that are not summed yet.
TEST_P(GpuStepsTest, AMissingWaitShows) {
  const std::vector<float> want = Train(GetParam(), {5, 3})[0].values;
  for (const Order order :
       {Order::kOldestStreamFirst, Order::kNewestStreamFirst}) {
    const std::vector<Outcome> ranks = Train(
        GetParam(), {5, 3}, {.order = order, .joins_another_stream = true});
    EXPECT_GT(Distance(GetParam(), ranks[0].values, want), 0.1);
  }
}

// Ranks that begin the calls of the two groups in different orders do not hang.
// The rank that fails last may find that the other rank has left.
TEST_P(GpuStepsTest, AnotherOrderOfTheGroupsIsNamed) {
  std::vector<Outcome> outcomes;
  const auto statuses =
      TrainRanks(GetParam(), {4, 4},
                 {.bucket_bytes = 1, .begins_sums_late = true}, outcomes);
  EXPECT_THAT(statuses, Each(Not(IsOk())));
  EXPECT_THAT(statuses,
              Contains(StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("ranks begin the calls of two groups "
                                          "in different orders"))));
}

TEST(GpuStepsErrorTest, AStepNeedsASample) {
  const Network network = Described("lenet");
  const auto statuses = RunRanks(
      Backend::kThreads, 1, [&](Communicator& control) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(const Stream stream, MakeStream());
        LOCKSTEP_ASSIGN_OR_RETURN(const auto replica,
                                  CudaReplica::Create(network, stream.get()));
        LOCKSTEP_ASSIGN_OR_RETURN(
            const auto steps,
            GpuSteps::Create(*replica, control, {.compute = stream.get()}));
        return steps->Enqueue({}, /*global_samples=*/0);
      });
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 0")));
}

constexpr TrainOptions kFloat16 = {.precision = ConvolutionPrecision::kFloat16};

// A pixel beyond float16 gives one rank gradients that are not finite. The sums
// of all ranks are not finite then, so that all skip the step, and halve the
// scale.
TEST(LossScalingTest, AnOverflowOnOneRankSkipsTheStepOnAll) {
  const Parameters start = CreateParameters(Described("lenet"), 1);
  TrainOptions options = kFloat16;
  for (const int64_t huge : {0, 7}) {
    options.huge_sample = huge;
    const std::vector<Outcome> ranks = Train("lenet", {3, 0, 5}, options);
    for (const Outcome& rank : ranks) {
      EXPECT_TRUE(std::ranges::equal(rank.values, start.values())) << huge;
      EXPECT_EQ(rank.loss_scale.skipped, kSteps);
      EXPECT_EQ(rank.loss_scale.scale, std::ldexp(LossScale::kFirst, -kSteps));
    }
  }
}

// 11 bits of precision move these runs by about a thousandth of their way.
TEST(LossScalingTest, RanksInFloat16TakeOneRanksSteps) {
  const std::vector<float> want = Train("lenet", {8})[0].values;
  for (const std::vector<int64_t>& deal :
       std::vector<std::vector<int64_t>>{{8}, {3, 5}}) {
    const std::vector<Outcome> ranks = Train("lenet", deal, kFloat16);
    EXPECT_LT(Distance("lenet", ranks[0].values, want), 0.02);
    for (const Outcome& rank : ranks) {
      EXPECT_EQ(rank.values, ranks[0].values);
      EXPECT_EQ(rank.loss_scale.skipped, 0);
      EXPECT_EQ(rank.loss_scale.good_steps, kSteps);
      EXPECT_EQ(rank.host_waits, 0);
    }
  }
}

}  // namespace
}  // namespace lockstep
