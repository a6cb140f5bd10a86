#include "models/train/data_parallel.h"

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/fake_communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/train/counting_model.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

// Sizes around every vector width that a compiler may choose.
TEST(SgdUpdateTest, RoundsTheProductAndThenTheDifference) {
  for (size_t n = 0; n <= 70; ++n) {
    std::vector<float> values(n), gradients(n), want(n);
    for (size_t i = 0; i < n; ++i) {
      values[i] = 1.0f / static_cast<float>(i + 3);
      gradients[i] = 1.0f / static_cast<float>(2 * i + 7);
      // Through memory, so that no compiler can fuse the two.
      volatile float product = 0.3f * gradients[i];
      want[i] = values[i] - product;
    }
    SgdUpdate(values, gradients, 0.3f);
    EXPECT_EQ(values, want) << "n = " << n;
  }
}

// The control: on these inputs a fused update gives other bits.
TEST(SgdUpdateTest, DiffersFromAFusedUpdate) {
  const float e = std::numeric_limits<float>::epsilon();
  std::vector<float> values = {1.0f + 2 * e};
  const std::vector<float> gradients = {1.0f + e};
  SgdUpdate(values, gradients, 1.0f + e);
  // (1 + e)^2 rounds to 1 + 2e, which loses e^2.
  EXPECT_EQ(values[0], 0.0f);
  EXPECT_EQ(std::fma(-(1.0f + e), 1.0f + e, 1.0f + 2 * e), -e * e);
}

TEST(SgdUpdateTest, NanStaysNan) {
  std::vector<float> values = {1.0f, 1.0f};
  const std::vector<float> gradients = {std::nanf(""), 0.0f};
  SgdUpdate(values, gradients, 0.5f);
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_EQ(values[1], 1.0f);
}

// Gradient buckets and the data-parallel step, with sums that are exact.

constexpr int64_t kAllBytes = 11 * sizeof(float);  // Of CountingModel.
constexpr absl::Duration kDeadline = absl::Seconds(30);

std::vector<std::vector<int>> AllOrders() {
  std::vector<int> order = {0, 1, 2, 3};
  std::vector<std::vector<int>> orders;
  do {
    orders.push_back(order);
  } while (std::next_permutation(order.begin(), order.end()));
  return orders;
}

std::vector<absl::Status> RunThreads(
    int world_size, const std::function<absl::Status(Communicator&)>& fn) {
  return RunRanks(Backend::kThreads, world_size, fn);
}

float Gradient(int rank, int step, size_t element) {
  return static_cast<float>(1000 * rank + 100 * step + element);
}

// Fills the gradients, marks them in the given order, and checks the sums.
absl::Status ReduceAndCheck(Communicator& communicator,
                            GradientReducer& reducer, Parameters& parameters,
                            const std::vector<int>& order, int step) {
  const std::span<float> gradients = parameters.gradients();
  for (size_t i = 0; i < gradients.size(); ++i) {
    gradients[i] = Gradient(communicator.rank(), step, i);
  }
  for (const int index : order) reducer.MarkReady(index);
  LOCKSTEP_RETURN_IF_ERROR(reducer.Finish());
  for (size_t i = 0; i < gradients.size(); ++i) {
    float want = 0;
    for (int rank = 0; rank < communicator.world_size(); ++rank) {
      want += Gradient(rank, step, i);
    }
    if (gradients[i] != want) {
      return absl::InternalError(
          absl::StrCat("element ", i, " is ", gradients[i], ", wanted ", want));
    }
  }
  return absl::OkStatus();
}

class WorldSizeTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(WorldSizes, WorldSizeTest, testing::Range(1, 5),
                         [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

// Ranks finish their gradients in different orders, and still meet.
TEST_P(WorldSizeTest, SumsEveryGradientForEveryBucketSizeAndOrder) {
  const std::vector<std::vector<int>> orders = AllOrders();
  EXPECT_THAT(
      RunThreads(GetParam(),
                 [&](Communicator& communicator) -> absl::Status {
                   for (int64_t bytes = 1; bytes <= kAllBytes + 4; bytes += 3) {
                     CountingModel model;
                     GradientReducer reducer(communicator, model.parameters(),
                                             bytes);
                     for (size_t step = 0; step < orders.size(); ++step) {
                       const size_t order =
                           (step + 7 * communicator.rank()) % orders.size();
                       LOCKSTEP_RETURN_IF_ERROR(ReduceAndCheck(
                           communicator, reducer, model.parameters(),
                           orders[order], static_cast<int>(step)));
                     }
                   }
                   return absl::OkStatus();
                 }),
      Each(IsOk()));
}

TEST_P(WorldSizeTest, StepsAsOneRankWouldAlsoWithUnevenAndEmptyShards) {
  const Dataset dataset = NumberedDataset(8);
  // Sizes that add up to a power of two keep the scaled gradients exact.
  const std::vector<std::vector<int64_t>> cuts = {
      {8}, {5, 3}, {5, 0, 3}, {0, 7, 1, 0}};
  std::vector<std::vector<float>> values(GetParam());
  const auto step = [&](Communicator& communicator) -> absl::Status {
    const std::vector<int64_t>& sizes = cuts[communicator.world_size() - 1];
    const int rank = communicator.rank();
    std::vector<int64_t> indices(sizes[rank]);
    std::iota(indices.begin(), indices.end(),
              std::accumulate(sizes.begin(), sizes.begin() + rank, 0));
    std::vector<float> images(2 * indices.size());
    std::vector<int32_t> labels(indices.size());
    dataset.GatherImages(indices, images);
    dataset.GatherLabels(indices, labels);
    CountingModel model(1.0f);
    GradientReducer reducer(communicator, model.parameters(), /*bucket=*/8);
    LOCKSTEP_ASSIGN_OR_RETURN(
        const StepResult result,
        TrainStep(model, reducer, {images, labels}, 8, /*lr=*/0.5f));
    if (result.metrics.samples != sizes[rank]) {
      return absl::InternalError("wrong metrics");
    }
    const std::span<const float> all = model.parameters().values();
    values[rank].assign(all.begin(), all.end());
    return absl::OkStatus();
  };
  EXPECT_THAT(RunThreads(GetParam(), step), Each(IsOk()));
  std::vector<float> want;
  for (const auto& [p, size] : {std::pair(0, 3), {1, 1}, {2, 5}, {3, 2}}) {
    for (int j = 0; j < size; ++j) {
      float sum = 0;
      for (int i = 0; i < 8; ++i)
        sum += static_cast<float>((i + 3 * p + j) % 11);
      want.push_back(1.0f - 0.5f * sum / 8);
    }
  }
  EXPECT_THAT(values, Each(want));
}

TEST_P(WorldSizeTest, BroadcastsRankZerosParametersAndSumsMetrics) {
  const int world_size = GetParam();
  EXPECT_THAT(
      RunThreads(world_size,
                 [&](Communicator& communicator) -> absl::Status {
                   const int rank = communicator.rank();
                   CountingModel model(static_cast<float>(7 + rank));
                   LOCKSTEP_RETURN_IF_ERROR(
                       BroadcastParameters(communicator, model.parameters()));
                   for (const float value : model.parameters().values()) {
                     if (value != 7)
                       return absl::InternalError("not rank 0's value");
                   }
                   LOCKSTEP_ASSIGN_OR_RETURN(
                       const Metrics sum,
                       AllReduceMetrics(communicator, {0.5 * rank, rank, 1}));
                   const int ranks = world_size * (world_size - 1) / 2;
                   return sum.loss_sum == 0.5 * ranks && sum.correct == ranks &&
                                  sum.samples == world_size
                              ? absl::OkStatus()
                              : absl::InternalError("wrong metrics");
                 }),
      Each(IsOk()));
}

TEST_P(WorldSizeTest, BroadcastsRankZerosBuffersInOneMessage) {
  EXPECT_THAT(
      RunThreads(
          GetParam(),
          [&](Communicator& communicator) -> absl::Status {
            const int rank = communicator.rank();
            CountingModel model;
            Buffers& buffers = model.buffers();
            buffers.floats()[0] = 0.5f + static_cast<float>(rank);
            buffers.floats()[1] = -2.0f - static_cast<float>(rank);
            // More than a float32 could hold.
            buffers.counters()[0] = (int64_t{1} << 60) + 1 + rank;
            LOCKSTEP_RETURN_IF_ERROR(BroadcastBuffers(communicator, buffers));
            return buffers.floats()[0] == 0.5f &&
                           buffers.floats()[1] == -2.0f &&
                           buffers.counters()[0] == (int64_t{1} << 60) + 1
                       ? absl::OkStatus()
                       : absl::InternalError("not rank 0's buffers");
          }),
      Each(IsOk()));
}

TEST_P(WorldSizeTest, RefusesAStepInWhichAGradientWasNotMarkedOnce) {
  for (const auto& [marks, message] :
       {std::pair(std::vector<int>{3, 1, 0}, "parameter c was marked ready 0"),
        std::pair(std::vector<int>{3, 2, 2, 1, 0}, "c was marked ready 2")}) {
    const std::vector<absl::Status> statuses =
        RunThreads(GetParam(), [&, &marks = marks](Communicator& communicator) {
          CountingModel model;
          GradientReducer reducer(communicator, model.parameters(), 1);
          for (const int index : marks) reducer.MarkReady(index);
          return reducer.Finish();
        });
    EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                        HasSubstr(message))));
  }
}

// Writes down what it is asked to sum; the first sum waits to be released.
class RecordingCommunicator : public FakeCommunicator {
 public:
  explicit RecordingCommunicator(bool hold = false) {
    if (!hold) release.Notify();
  }
  int world_size() const override { return 2; }
  absl::Status Run(const Collective& collective) override {
    const int64_t call = calls++;
    const Buffer& data = collective.output;
    sums.push_back({static_cast<float*>(data.data), data.count});
    if (call == 0) {
      started.Notify();
      if (!release.WaitForNotificationWithTimeout(kDeadline)) {
        return absl::DeadlineExceededError("was not released");
      }
    }
    return absl::OkStatus();
  }

  std::atomic<int64_t> calls = 0;
  std::vector<std::pair<float*, int64_t>> sums;  // To be read after Finish.
  absl::Notification started;
  absl::Notification release;
};

TEST(GradientReducerTest,
     SendsTheSameBucketsInTheSameOrderWhateverIsReadyWhen) {
  for (const std::vector<int>& order : AllOrders()) {
    RecordingCommunicator communicator;
    CountingModel model;
    // 2 elements are below 12 bytes, 2 + 5 are not.
    GradientReducer reducer(communicator, model.parameters(), 12);
    EXPECT_EQ(reducer.bucket_count(), 2);
    for (const int index : order) reducer.MarkReady(index);
    ASSERT_THAT(reducer.Finish(), IsOk());
    float* const begin = model.parameters().gradients().data();
    EXPECT_THAT(communicator.sums,
                ElementsAre(std::pair(begin + 4, 7), std::pair(begin, 4)));
  }
}

TEST(GradientReducerTest, CutsBucketsAtTheirSize) {
  RecordingCommunicator communicator;
  CountingModel model;
  for (const auto& [bytes, buckets] : {std::pair(1, 4),
                                       {4, 4},
                                       {5, 3},
                                       {8, 3},
                                       {9, 2},
                                       {28, 2},
                                       {29, 2},
                                       {32, 2},
                                       {33, 1},
                                       {44, 1},
                                       {1 << 20, 1}}) {
    EXPECT_EQ(
        GradientReducer(communicator, model.parameters(), bytes).bucket_count(),
        buckets)
        << bytes;
  }
}

TEST(GradientReducerTest, SumsTheFirstBucketWhileTheLastGradientIsComputed) {
  RecordingCommunicator communicator(/*hold=*/true);
  CountingModel model;
  GradientReducer reducer(communicator, model.parameters(), /*bucket=*/1);
  reducer.MarkReady(3);
  // The sum has begun although three gradients are still to come,
  EXPECT_TRUE(communicator.started.WaitForNotificationWithTimeout(kDeadline));
  // and marking them does not wait for it.
  for (const int index : {2, 1, 0}) reducer.MarkReady(index);
  EXPECT_EQ(communicator.calls, 1);
  communicator.release.Notify();
  EXPECT_THAT(reducer.Finish(), IsOk());
  EXPECT_THAT(communicator.sums, SizeIs(4));
}

// The control of the test above: with one bucket there is no overlap.
TEST(GradientReducerTest, SumsNothingBeforeTheOnlyBucketIsComplete) {
  RecordingCommunicator communicator;
  CountingModel model;
  GradientReducer reducer(communicator, model.parameters(), kAllBytes);
  for (const int index : {3, 2, 1}) reducer.MarkReady(index);
  EXPECT_EQ(communicator.calls, 0);
  reducer.MarkReady(0);
  EXPECT_THAT(reducer.Finish(), IsOk());
  EXPECT_EQ(communicator.calls, 1);
}

// Every call fails, as when a rank has died.
class BrokenCommunicator : public RecordingCommunicator {
 public:
  absl::Status Run(const Collective&) override {
    return absl::UnavailableError("rank 1 died");
  }
};

TEST(GradientReducerTest, ReportsTheCommunicatorsError) {
  BrokenCommunicator communicator;
  CountingModel model;
  GradientReducer reducer(communicator, model.parameters());
  EXPECT_THAT(TrainStep(model, reducer, {}, 1, 0.1f),
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 died"));
}

TEST(BroadcastBuffersTest, SendsOneMessageAndNoneWithoutBuffers) {
  RecordingCommunicator communicator;
  CountingModel model;
  EXPECT_THAT(BroadcastBuffers(communicator, model.buffers()), IsOk());
  ASSERT_THAT(communicator.sums, SizeIs(1));
  EXPECT_EQ(communicator.sums[0].second, 2 * 4 + 8);  // In bytes.
  Buffers none;
  EXPECT_THAT(BroadcastBuffers(communicator, none), IsOk());
  EXPECT_THAT(communicator.sums, SizeIs(1));
}

TEST(TrainStepTest, RefusesAnEmptyGlobalBatchAndReportsTheModelsError) {
  RecordingCommunicator communicator;
  CountingModel model;
  GradientReducer reducer(communicator, model.parameters());
  EXPECT_THAT(TrainStep(model, reducer, {}, 0, 0.1f),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 0")));
  const int32_t label = 0;
  EXPECT_THAT(TrainStep(model, reducer, {{}, {&label, 1}}, 1, 0.1f),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("differ in number")));
}

}  // namespace
}  // namespace lockstep
