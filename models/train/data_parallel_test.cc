#include "models/train/data_parallel.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "models/train/metrics.h"
#include "models/train/test_inputs.h"

namespace lockstep {
namespace {

using testing::_;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

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

void OnRanks(int world_size,
             const std::function<absl::Status(Communicator&)>& fn) {
  EXPECT_THAT(RunRanks(Backend::kThreads, world_size, fn), Each(IsOk()));
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
    EXPECT_EQ(gradients[i], want) << "element " << i;
  }
  return absl::OkStatus();
}

// A group whose Allocate returns the given error.
class WithoutMemory : public ForwardingCommunicator {
 public:
  WithoutMemory(Communicator& inner, absl::Status status)
      : ForwardingCommunicator(inner), status_(std::move(status)) {}
  absl::StatusOr<GroupBuffer> Allocate(int64_t, CallSite) override {
    return status_;
  }

 private:
  const absl::Status status_;
};

// Ranks that are processes share no memory except the group's. The sums in the
// group's memory must be right, because other ranks read that memory.
TEST(PlaceGradientsInGroupTest, ReducesThere) {
  for (const Backend backend : {Backend::kThreads, Backend::kProcesses}) {
    EXPECT_THAT(RunRanks(backend, 3,
                         [](Communicator& group) -> absl::Status {
                           CountingModel model;
                           Parameters& parameters = model.parameters();
                           const float* before = parameters.gradients().data();
                           LOCKSTEP_ASSIGN_OR_RETURN(
                               const std::string warning,
                               PlaceGradientsInGroup(group, parameters));
                           if (!warning.empty()) {
                             return absl::InternalError(warning);
                           }
                           EXPECT_NE(parameters.gradients().data(), before);
                           EXPECT_EQ(parameters.gradients().size(), 11u);
                           GradientReducer reducer(group, parameters, 1);
                           return ReduceAndCheck(group, reducer, parameters,
                                                 {3, 2, 1, 0}, /*step=*/0);
                         }),
                Each(IsOk()));
  }
}

TEST(PlaceGradientsInGroupTest, LeavesThemWhereTheGroupHasNoMemory) {
  OnRanks(2, [](Communicator& group) -> absl::Status {
    CountingModel model;
    Parameters& parameters = model.parameters();
    const float* before = parameters.gradients().data();
    WithoutMemory without(group, absl::ResourceExhaustedError("none"));
    EXPECT_THAT(PlaceGradientsInGroup(without, parameters),
                IsOkAndHolds("the group has no memory for 44 bytes of "
                             "gradients on each rank (none): they stay in "
                             "ordinary memory, where all-reduce is slower"));
    EXPECT_EQ(parameters.gradients().data(), before);
    WithoutMemory failed(group, absl::UnavailableError("rank 1 died"));
    EXPECT_THAT(PlaceGradientsInGroup(failed, parameters),
                StatusIs(absl::StatusCode::kUnavailable, "rank 1 died"));
    GradientReducer reducer(group, parameters);
    return ReduceAndCheck(group, reducer, parameters, {3, 2, 1, 0},
                          /*step=*/0);
  });
}

class WorldSizeTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(WorldSizes, WorldSizeTest, testing::Range(1, 5),
                         [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

// Ranks mark their gradients in different orders, and the sums are still right.
TEST_P(WorldSizeTest, SumsEveryGradientForEveryBucketSizeAndOrder) {
  const std::vector<std::vector<int>> orders = AllOrders();
  OnRanks(GetParam(), [&](Communicator& communicator) -> absl::Status {
    for (int64_t bytes = 1; bytes <= kAllBytes + 4; bytes += 3) {
      for (const bool overlaps : {true, false}) {
        CountingModel model;
        GradientReducer reducer(communicator, model.parameters(), bytes,
                                overlaps);
        for (size_t step = 0; step < orders.size(); ++step) {
          const size_t order = (step + 7 * communicator.rank()) % orders.size();
          LOCKSTEP_RETURN_IF_ERROR(
              ReduceAndCheck(communicator, reducer, model.parameters(),
                             orders[order], static_cast<int>(step)));
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(WorldSizeTest, BroadcastsRankZerosParametersAndBuffersAndSumsMetrics) {
  const int world_size = GetParam();
  OnRanks(world_size, [&](Communicator& communicator) -> absl::Status {
    const int rank = communicator.rank();
    CountingModel model(static_cast<float>(7 + rank));
    Buffers& buffers = model.buffers();
    buffers.floats()[0] = 0.5f + static_cast<float>(rank);
    buffers.floats()[1] = -2.0f - static_cast<float>(rank);
    // The values are more than a float32 could hold.
    buffers.counters()[0] = (int64_t{1} << 60) + 1 + rank;
    LOCKSTEP_RETURN_IF_ERROR(
        BroadcastParameters(communicator, model.parameters()));
    LOCKSTEP_RETURN_IF_ERROR(BroadcastBuffers(communicator, buffers));
    EXPECT_THAT(model.parameters().values(), Each(7.0f));
    EXPECT_THAT(buffers.floats(), ElementsAre(0.5f, -2.0f));
    EXPECT_THAT(buffers.counters(), ElementsAre((int64_t{1} << 60) + 1));
    LOCKSTEP_ASSIGN_OR_RETURN(
        const Metrics sum,
        AllReduceMetrics(communicator, {0.5 * rank, rank, 1}));
    const int ranks = world_size * (world_size - 1) / 2;
    EXPECT_EQ(sum.loss_sum, 0.5 * ranks);
    EXPECT_EQ(sum.correct, ranks);
    EXPECT_EQ(sum.samples, world_size);
    return absl::OkStatus();
  });
}

TEST_P(WorldSizeTest, RefusesAStepInWhichAGradientWasNotMarkedOnce) {
  for (const auto& [marks, message] :
       {std::pair(std::vector<int>{3, 1, 0}, "parameter c was marked ready 0"),
        std::pair(std::vector<int>{3, 2, 2, 1, 0}, "c was marked ready 2")}) {
    const std::vector<absl::Status> statuses =
        RunRanks(Backend::kThreads, GetParam(),
                 [&, &marks = marks](Communicator& communicator) {
                   CountingModel model;
                   GradientReducer reducer(communicator, model.parameters(), 1);
                   for (const int index : marks) reducer.MarkReady(index);
                   return reducer.Finish();
                 });
    EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                        HasSubstr(message))));
  }
}

// Records the sums that it is asked for. If `hold` is true, the first sum
// blocks until it is released.
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

// The test tries every set of gradients that are final when a step ends too
// early.
TEST(GradientReducerTest, SumsNoBucketBeforeItsLastGradient) {
  const std::pair<int64_t, std::vector<std::vector<int>>> kBuckets[] = {
      {1, {{3}, {2}, {1}, {0}}},
      {12, {{3, 2}, {1, 0}}},
      {kAllBytes, {{3, 2, 1, 0}}}};
  for (const auto& [bytes, buckets] : kBuckets) {
    for (unsigned set = 0; set < 16; ++set) {
      const auto is_final = [set](int index) {
        return (set >> index & 1) != 0;
      };
      RecordingCommunicator communicator;
      CountingModel model;
      GradientReducer reducer(communicator, model.parameters(), bytes);
      for (const int index : {0, 2, 1, 3}) {
        if (is_final(index)) reducer.MarkReady(index);
      }
      const absl::Status status = reducer.Finish();  // All sums have ended.
      EXPECT_EQ(status.ok(), set == 15) << status;
      size_t complete = 0;
      while (complete < buckets.size() &&
             std::ranges::all_of(buckets[complete], is_final)) {
        ++complete;
      }
      EXPECT_THAT(communicator.sums, SizeIs(complete))
          << "buckets of " << bytes << " bytes, set " << set;
    }
  }
}

TEST(GradientReducerTest, CutsBucketsAtTheirSize) {
  RecordingCommunicator communicator;
  CountingModel model;
  constexpr std::pair<int, int> kCases[] = {
      {1, 4},  {4, 4},  {5, 3},  {8, 3},  {9, 2},       {28, 2},
      {29, 2}, {32, 2}, {33, 1}, {44, 1}, {1 << 20, 1}, {0, 1},
  };
  for (const auto& [bytes, buckets] : kCases) {
    EXPECT_EQ(
        GradientReducer(communicator, model.parameters(), bytes).bucket_count(),
        buckets)
        << bytes;
  }
  for (const auto& [floats, bytes] :
       {std::pair(1, 256 << 10), {2 << 20, 512 << 10}, {64 << 20, 1 << 20}}) {
    EXPECT_EQ(
        GradientReducer::DefaultBucketBytes(Parameters({{"w", {floats}}})),
        bytes);
  }
}

TEST(GradientReducerTest, SumsTheFirstBucketWhileTheLastGradientIsComputed) {
  CountingModel model;
  {
    RecordingCommunicator communicator(/*hold=*/true);
    GradientReducer reducer(communicator, model.parameters(), /*bucket=*/1);
    reducer.MarkReady(3);
    // The sum has begun although three gradients are not final yet.
    EXPECT_TRUE(communicator.started.WaitForNotificationWithTimeout(kDeadline));
    // Marking them does not wait for the sum.
    for (const int index : {2, 1, 0}) reducer.MarkReady(index);
    EXPECT_EQ(communicator.calls, 1);
    communicator.release.Notify();
    EXPECT_THAT(reducer.Finish(), IsOk());
    EXPECT_THAT(communicator.sums, SizeIs(4));
  }
  // The control: with one bucket nothing overlaps.
  RecordingCommunicator communicator;
  GradientReducer reducer(communicator, model.parameters(), kAllBytes);
  for (const int index : {3, 2, 1}) reducer.MarkReady(index);
  EXPECT_EQ(communicator.calls, 0);
  reducer.MarkReady(0);
  EXPECT_THAT(reducer.Finish(), IsOk());
  EXPECT_EQ(communicator.calls, 1);
}

// Blocks the second sum until it is released.
class HoldingCommunicator : public RecordingCommunicator {
 public:
  absl::Status Run(const Collective& collective) override {
    if (calls == 1 && !second.WaitForNotificationWithTimeout(kDeadline)) {
      return absl::DeadlineExceededError("was not released");
    }
    return RecordingCommunicator::Run(collective);
  }

  absl::Notification second;
};

TEST(GradientReducerTest, HandsOverABucketWhileTheNextIsOnItsWay) {
  HoldingCommunicator communicator;
  CountingModel model;
  GradientReducer reducer(communicator, model.parameters(), 12);
  for (const int index : {3, 2, 1, 0}) reducer.MarkReady(index);
  std::vector<std::pair<int64_t, int64_t>> summed;
  EXPECT_THAT(reducer.Finish([&](int64_t begin, int64_t end) {
    summed.emplace_back(begin, end);
    if (summed.size() == 1) communicator.second.Notify();
  }),
              IsOk());
  EXPECT_THAT(summed, ElementsAre(std::pair(4, 11), std::pair(0, 4)));
  // An incomplete step calls `summed` for nothing.
  RecordingCommunicator other;
  GradientReducer incomplete(other, model.parameters(), 12);
  for (const int index : {3, 2}) incomplete.MarkReady(index);
  EXPECT_THAT(incomplete.Finish([](int64_t, int64_t) { ADD_FAILURE(); }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("marked ready 0")));
}

// If nothing can overlap, sums run in Finish and on its thread.
TEST(GradientReducerTest, SumsOnTheCallersThreadWhereNothingOverlaps) {
  class ThreadCommunicator : public RecordingCommunicator {
   public:
    absl::Status Run(const Collective& collective) override {
      threads.insert(std::this_thread::get_id());
      return RecordingCommunicator::Run(collective);
    }
    std::set<std::thread::id> threads;
  };
  for (const bool overlaps : {true, false}) {
    ThreadCommunicator communicator;
    CountingModel model;
    GradientReducer reducer(communicator, model.parameters(), 12, overlaps);
    for (const int index : {3, 2, 1, 0}) reducer.MarkReady(index);
    if (!overlaps) {
      EXPECT_EQ(communicator.calls, 0);
    }
    std::vector<std::pair<int64_t, int64_t>> summed;
    EXPECT_THAT(reducer.Finish([&](int64_t begin, int64_t end) {
      summed.emplace_back(begin, end);
      if (!overlaps) {
        EXPECT_EQ(communicator.calls, std::ssize(summed));
      }
    }),
                IsOk());
    EXPECT_THAT(summed, ElementsAre(std::pair(4, 11), std::pair(0, 4)));
    EXPECT_EQ(communicator.threads.contains(std::this_thread::get_id()),
              !overlaps);
    EXPECT_EQ(communicator.threads.size(), 1);
  }
}

// Fails every call, as when a rank has died.
class BrokenCommunicator : public RecordingCommunicator {
 public:
  absl::Status Run(const Collective&) override {
    return absl::UnavailableError("rank 1 died");
  }
};

TEST(CommunicatorsErrorTest, IsReported) {
  BrokenCommunicator communicator;
  CountingModel model;
  const auto dead = StatusIs(absl::StatusCode::kUnavailable, "rank 1 died");
  for (const bool overlaps : {true, false}) {
    GradientReducer reducer(communicator, model.parameters(), 0, overlaps);
    EXPECT_THAT(TrainStep(model, reducer, {}, 1, 0.1f), dead);
  }
  EXPECT_THAT(AllReduceMeter(communicator, AverageMeter()), dead);
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

// Tests of batch norm's messages at the same time as the sums of gradients, and
// of a step in which a rank fails between its messages.

// A model whose ForwardBackward runs the test's script.
class ScriptedModel : public CountingModel {
 public:
  using Script = std::function<absl::Status(
      ScriptedModel& model, Communicator& group, GradientReady ready)>;

  explicit ScriptedModel(Script script) : script_(std::move(script)) {}

  int ConvertSyncBatchNorm(Communicator& group) override {
    group_ = &group;
    return 1;
  }

  absl::StatusOr<Metrics> ForwardBackward(const Batch&, float,
                                          GradientReady ready) override {
    LOCKSTEP_RETURN_IF_ERROR(script_(*this, *group_, ready));
    return Metrics();
  }

 private:
  const Script script_;
  Communicator* group_ = nullptr;
};

// Sends a message as batch norm does.
absl::Status ExchangeMessage(Communicator& group) {
  int64_t ranks = 1;
  LOCKSTEP_RETURN_IF_ERROR(group.AllReduce(std::span<int64_t>(&ranks, 1)));
  return ranks == group.world_size()
             ? absl::OkStatus()
             : absl::DataLossError(absl::StrCat("sum is ", ranks));
}

// Takes one step, then destroys the batch norm group before the reducer, as
// data_parallel.h requires. If `group_first` is false, destroys the reducer
// first.
absl::Status RunStep(Communicator& communicator, ScriptedModel::Script script,
                     bool group_first = true) {
  ScriptedModel model(std::move(script));
  auto reducer = std::make_unique<GradientReducer>(
      communicator, model.parameters(), /*bucket_bytes=*/1);
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group,
                            SynchroniseBatchNorm(communicator, model));
  const absl::Status status =
      TrainStep(model, *reducer, {}, /*global_samples=*/1, /*lr=*/1).status();
  if (group_first) group.reset();
  reducer.reset();
  return status;
}

class BackendTest : public testing::TestWithParam<std::tuple<Backend, int>> {};

INSTANTIATE_TEST_SUITE_P(Groups, BackendTest,
                         testing::Combine(testing::Values(Backend::kThreads,
                                                          Backend::kProcesses),
                                          testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)),
                                               "P", std::get<1>(info.param));
                         });

TEST_P(BackendTest, MessagesPassWhileGradientsAreSummed) {
  const auto script = [](ScriptedModel& model, Communicator& group,
                         Model::GradientReady ready) -> absl::Status {
    for (int index = model.parameters().count() - 1; index >= 0; --index) {
      const std::span<float> gradient = model.parameters().gradient(index);
      std::fill(gradient.begin(), gradient.end(),
                static_cast<float>(group.rank() + 1));
      // The order of the message and the gradient differs between ranks.
      if (group.rank() == index)
        LOCKSTEP_RETURN_IF_ERROR(ExchangeMessage(group));
      ready(index);
      if (group.rank() != index)
        LOCKSTEP_RETURN_IF_ERROR(ExchangeMessage(group));
    }
    return absl::OkStatus();
  };
  const auto [backend, world_size] = GetParam();
  EXPECT_THAT(
      RunRanks(backend, world_size,
               [&](Communicator& communicator) -> absl::Status {
                 ScriptedModel model(script);
                 GradientReducer reducer(communicator, model.parameters(), 1);
                 LOCKSTEP_ASSIGN_OR_RETURN(
                     const std::unique_ptr<Communicator> group,
                     SynchroniseBatchNorm(communicator, model));
                 const int ranks = communicator.world_size();
                 const auto sum = static_cast<float>(ranks * (ranks + 1) / 2);
                 for (int step = 1; step <= 20; ++step) {
                   LOCKSTEP_RETURN_IF_ERROR(
                       TrainStep(model, reducer, {}, 1, 1.0f).status());
                   for (const float value : model.parameters().values()) {
                     if (value == -sum * static_cast<float>(step)) continue;
                     return absl::DataLossError(absl::StrCat(value));
                   }
                 }
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

TEST(SynchroniseBatchNormTest, RefusesAModelWithoutBatchNorm) {
  EXPECT_THAT(
      RunRanks(Backend::kThreads, 2,
               [](Communicator& communicator) {
                 CountingModel model;
                 return SynchroniseBatchNorm(communicator, model).status();
               }),
      Each(StatusIs(absl::StatusCode::kInvalidArgument,
                    HasSubstr("no batch norm"))));
}

// Returns a script in which rank 1 fails while rank 0 waits for its message.
// Rank `pending` has begun to sum a gradient before the failure; the other rank
// never begins that sum.
ScriptedModel::Script FailingScript(int pending,
                                    std::function<absl::Status()> fail) {
  return [pending, fail](ScriptedModel& model, Communicator& group,
                         Model::GradientReady ready) -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(ExchangeMessage(group));
    if (group.rank() == pending) ready(model.parameters().count() - 1);
    if (group.rank() == 1) return fail();
    return ExchangeMessage(group);
  };
}

absl::Status Fault() { return absl::DataLossError("a fault of rank 1"); }

TEST(SynchroniseBatchNormTest, NoRankWaitsForOneThatFailedBetweenMessages) {
  for (const Backend backend : {Backend::kThreads, Backend::kProcesses}) {
    for (const int pending : {0, 1}) {
      const std::vector<absl::Status> statuses =
          RunRanks(backend, 2, [&](Communicator& communicator) {
            return RunStep(communicator, FailingScript(pending, Fault));
          });
      // The error is not kDeadlineExceeded.
      EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnavailable,
                                        HasSubstr("rank 1")));
      EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kDataLoss, _));
    }
  }
}

// The control: rank 1 waits for rank 0's part of the sum, and rank 0 waits for
// rank 1's message. One of the two waits ends, but only after the timeout.
TEST(SynchroniseBatchNormTest, InTheOtherOrderTheyWaitForEachOther) {
  RunRanksOptions options;
  options.group.timeout = absl::Milliseconds(300);
  const absl::Time start = absl::Now();
  const std::vector<absl::Status> statuses = RunRanks(
      Backend::kThreads, 2,
      [&](Communicator& communicator) {
        return RunStep(communicator, FailingScript(/*pending=*/1, Fault),
                       /*group_first=*/false);
      },
      options);
  EXPECT_GE(absl::Now() - start, options.group.timeout);
  EXPECT_THAT(statuses[0],
              AnyOf(StatusIs(absl::StatusCode::kDeadlineExceeded, _),
                    StatusIs(absl::StatusCode::kUnavailable,
                             HasSubstr("rank 1 left"))));
}

TEST(SynchroniseBatchNormTest, TheDeathOfARankEndsAWaitForItsMessage) {
  for (const int pending : {0, 1}) {
    const std::vector<absl::Status> statuses =
        RunRanks(Backend::kProcesses, 2, [&](Communicator& communicator) {
          return RunStep(communicator, FailingScript(pending, [] {
                           raise(SIGKILL);
                           return absl::OkStatus();
                         }));
        });
    EXPECT_THAT(statuses[0],
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("rank 1 (pid "), HasSubstr("died"),
                               HasSubstr("data_parallel_test.cc"))));
    EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kAborted, _));
  }
}

}  // namespace
}  // namespace lockstep
