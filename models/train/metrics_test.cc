// Meters, and what a trainer evaluates: the same bits at every number of ranks.
#include "models/train/metrics.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
#include "models/train/trainer.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAreArray;

uint64_t Bits(double value) { return std::bit_cast<uint64_t>(value); }

TEST(AverageMeterTest, WeightsByCountAndForgetsOnReset) {
  AverageMeter meter;
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(meter.sum(), 0);
    EXPECT_EQ(meter.count(), 0);
    EXPECT_TRUE(std::isnan(meter.average()));
    EXPECT_TRUE(std::isnan(meter.last()));
    meter.Update(0.5);
    EXPECT_EQ(meter.average(), 0.5);
    meter.Update(2.0, 3);
    EXPECT_EQ(meter.last(), 2.0);
    EXPECT_EQ(meter.sum(), 6.5);
    EXPECT_EQ(meter.count(), 4);
    EXPECT_EQ(meter.average(), 1.625);
    meter.Update(7.0, 0);
    EXPECT_EQ(meter.last(), 7.0);
    EXPECT_EQ(meter.average(), 1.625);
    meter.UpdateSum(3.5, 4);
    EXPECT_EQ(meter.last(), 0.875);
    EXPECT_EQ(meter.sum(), 10);
    EXPECT_EQ(meter.average(), 1.25);
    meter.Reset();
  }
}

TEST(AverageMeterTest, CountsAMeanAsItsSamplesWithoutRounding) {
  AverageMeter together, apart;
  together.Update(0.1, 1000);
  for (int i = 0; i < 1000; ++i) apart.Update(0.1);
  EXPECT_EQ(together.average(), 0.1);
  // What 0.1 is above a tenth; a rounded product would leave nothing.
  for (AverageMeter* meter : {&together, &apart}) meter->Update(-100);
  EXPECT_EQ(together.sum(), 800 * 0x1p-57);
  EXPECT_EQ(Bits(together.sum()), Bits(apart.sum()));
}

// Update i of the run, whoever makes it.
struct Update {
  double value;
  int64_t count;
};

// Means whose sums round, of counts that differ; the last ones cancel.
std::vector<Update> Updates(int n) {
  std::vector<Update> updates;
  for (int i = 0; i < n; ++i) {
    updates.push_back({std::sin(i + 1) * std::exp2(i % 9), 1 + 37 * i % 64});
  }
  updates.push_back({1e200, 5});
  updates.push_back({-1e200, 5});
  return updates;
}

// What a rank ends with.
struct Result {
  double average;
  double sum;
  int64_t count;

  friend bool operator<(const Result& a, const Result& b) {
    return std::tuple(Bits(a.average), Bits(a.sum), a.count) <
           std::tuple(Bits(b.average), Bits(b.sum), b.count);
  }
};

using Average = std::function<absl::StatusOr<Result>(
    Communicator&, const std::vector<Update>& mine)>;

absl::StatusOr<Result> AverageByMeter(Communicator& communicator,
                                      const std::vector<Update>& mine) {
  AverageMeter meter;
  for (const Update& update : mine) meter.Update(update.value, update.count);
  LOCKSTEP_ASSIGN_OR_RETURN(const AverageMeter all,
                            AllReduceMeter(communicator, meter));
  return Result{all.average(), all.sum(), all.count()};
}

// A control: float64 sums, in rank order.
absl::StatusOr<Result> AverageByPlainSum(Communicator& communicator,
                                         const std::vector<Update>& mine) {
  double sum = 0;
  int64_t count = 0;
  for (const Update& update : mine) {
    sum += update.value * static_cast<double>(update.count);
    count += update.count;
  }
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(std::span<double>(&sum, 1)));
  LOCKSTEP_RETURN_IF_ERROR(
      communicator.AllReduce(std::span<int64_t>(&count, 1)));
  return Result{sum / static_cast<double>(count), sum, count};
}

// A control: the mean of the ranks' averages, as if ranks were alike.
absl::StatusOr<Result> AverageByMeanOfMeans(Communicator& communicator,
                                            const std::vector<Update>& mine) {
  AverageMeter meter;
  for (const Update& update : mine) meter.Update(update.value, update.count);
  double mean = mine.empty() ? 0 : meter.average();
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(std::span<double>(&mean, 1)));
  mean /= communicator.world_size();
  LOCKSTEP_ASSIGN_OR_RETURN(const AverageMeter all,
                            AllReduceMeter(communicator, meter));
  return Result{mean, all.sum(), all.count()};
}

// What the ranks end with when update i is made by rank `dealt_to(i, P)`; one
// entry if it is the same bits everywhere.
std::set<Result> RunAverage(Backend backend, int world_size,
                            const std::vector<Update>& updates,
                            const std::function<int(int, int)>& dealt_to,
                            const Average& average) {
  const auto ranks = RunRanksCollect(
      backend, world_size,
      [&](Communicator& communicator) -> absl::StatusOr<std::string> {
        std::vector<Update> mine;
        for (int i = 0; i < static_cast<int>(updates.size()); ++i) {
          if (dealt_to(i, world_size) == communicator.rank()) {
            mine.push_back(updates[i]);
          }
        }
        LOCKSTEP_ASSIGN_OR_RETURN(const Result result,
                                  average(communicator, mine));
        return std::string(reinterpret_cast<const char*>(&result),
                           sizeof(result));
      });
  std::set<Result> results;
  for (const absl::StatusOr<std::string>& rank : ranks) {
    EXPECT_THAT(rank, IsOk());
    if (!rank.ok() || rank->size() != sizeof(Result)) continue;
    Result result;
    std::memcpy(&result, rank->data(), sizeof(result));
    results.insert(result);
  }
  return results;
}

constexpr int kWorldSizes[] = {1, 2, 3, 4, 8};

// Ways to deal the updates: in turn; unevenly, so that of several ranks some
// have none; all to the last rank.
std::vector<std::function<int(int, int)>> Deals() {
  return {[](int i, int world_size) { return i % world_size; },
          [](int i, int world_size) { return i * i * 4 % world_size; },
          [](int, int world_size) { return world_size - 1; }};
}

// All that the ranks end with at any world size, dealt in any way.
std::set<Result> Everywhere(Backend backend, const std::vector<Update>& updates,
                            const Average& average) {
  std::set<Result> results;
  for (const int world_size : kWorldSizes) {
    for (const auto& deal : Deals()) {
      results.merge(RunAverage(backend, world_size, updates, deal, average));
    }
  }
  return results;
}

class AllReduceMeterTest : public testing::TestWithParam<Backend> {};

INSTANTIATE_TEST_SUITE_P(Backends, AllReduceMeterTest,
                         testing::Values(Backend::kThreads,
                                         Backend::kProcesses),
                         [](const auto& info) { return Name(info.param); });

TEST_P(AllReduceMeterTest, GivesOneMetersBitsAtEveryWorldSize) {
  for (const int n : {1, 2, 50, 1000}) {
    AverageMeter one;
    const std::vector<Update> updates = Updates(n);
    for (const Update& update : updates) {
      one.Update(update.value, update.count);
    }
    const std::set<Result> results =
        Everywhere(GetParam(), updates, AverageByMeter);
    ASSERT_EQ(results.size(), 1u) << n;
    EXPECT_EQ(Bits(results.begin()->average), Bits(one.average())) << n;
    EXPECT_EQ(Bits(results.begin()->sum), Bits(one.sum())) << n;
    EXPECT_EQ(results.begin()->count, one.count()) << n;
  }
}

TEST_P(AllReduceMeterTest, OfNothingIsNothingOnEveryRank) {
  const std::set<Result> results = Everywhere(GetParam(), {}, AverageByMeter);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_TRUE(std::isnan(results.begin()->average));
  EXPECT_EQ(results.begin()->count, 0);
}

TEST(AllReduceMeterControlTest, OtherAveragesDependOnTheWorldSize) {
  std::vector<Update> updates = Updates(50);
  updates.resize(50);  // Without what a plain sum loses altogether.
  for (const Average& average :
       {Average(AverageByPlainSum), Average(AverageByMeanOfMeans)}) {
    EXPECT_GT(Everywhere(Backend::kThreads, updates, average).size(), 1u);
  }
}

TEST(AllReduceMeterTest, LeavesTheRanksOwnMeterAndLastValue) {
  EXPECT_THAT(RunRanks(Backend::kThreads, 3,
                       [](Communicator& communicator) -> absl::Status {
                         AverageMeter meter;
                         meter.Update(communicator.rank());
                         for (int round = 0; round < 2; ++round) {
                           LOCKSTEP_ASSIGN_OR_RETURN(
                               const AverageMeter all,
                               AllReduceMeter(communicator, meter));
                           if (all.sum() != 3 || all.count() != 3 ||
                               all.last() != communicator.rank() ||
                               meter.sum() != communicator.rank() ||
                               meter.count() != 1) {
                             return absl::InternalError("wrong meters");
                           }
                         }
                         return absl::OkStatus();
                       }),
              testing::Each(IsOk()));
}

class BrokenCommunicator : public FakeCommunicator {
 public:
  absl::Status Run(const Collective&) override {
    return absl::UnavailableError("rank 1 died");
  }
};

TEST(AllReduceMeterTest, ReportsTheCommunicatorsError) {
  BrokenCommunicator communicator;
  EXPECT_THAT(AllReduceMeter(communicator, AverageMeter()),
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 died"));
}

// What a trainer evaluates, on which ranks, and with which buffers.
constexpr int64_t kSamples = 13;
using Batches = std::vector<std::vector<int64_t>>;

// Also that the batches are those of one rank.
TEST(TrainerEvaluationTest, EvaluatesEverySampleExactlyOnce) {
  constexpr int64_t kBatch = Trainer::kEvaluationBatch;
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{7}, kBatch,
                             kBatch + 1, 9 * kBatch + 78}) {
    const Dataset test = NumberedDataset(size);
    const Dataset train = NumberedDataset(1);
    Batches want;
    for (int64_t i = 0; i < size; ++i) {
      if (i % kBatch == 0) want.emplace_back();
      want.back().push_back(i);
    }
    for (int world_size = 1; world_size <= 4; ++world_size) {
      std::vector<Batches> evaluated(world_size);
      EXPECT_THAT(
          RunRanks(Backend::kThreads, world_size,
                   [&](Communicator& communicator) -> absl::Status {
                     CountingModel model;
                     LOCKSTEP_ASSIGN_OR_RETURN(
                         const std::unique_ptr<Trainer> trainer,
                         Trainer::Create(communicator, model, train, {}));
                     LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics,
                                               trainer->Evaluate(test));
                     evaluated[communicator.rank()] = model.evaluated();
                     return metrics.samples == size &&
                                    metrics.correct == (size + 1) / 2
                                ? absl::OkStatus()
                                : absl::InternalError("wrong metrics");
                   }),
          Each(IsOk()));
      Batches got;
      for (const Batches& batches : evaluated) {
        // No rank has more than one batch beyond its share.
        EXPECT_LE(batches.size(), want.size() / world_size + 1);
        got.insert(got.end(), batches.begin(), batches.end());
      }
      EXPECT_EQ(got, want);
    }
  }
}

// Writes down the buffers that it evaluates with.
class BufferReadingModel : public CountingModel {
 public:
  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override {
    evaluated_with.push_back(State());
    return CountingModel::Evaluate(batch);
  }

  std::vector<double> State() {
    return {buffers().floats()[0], buffers().floats()[1],
            static_cast<double>(buffers().counters()[0])};
  }

  std::vector<std::vector<double>> evaluated_with;
};

TEST(TrainerEvaluationTest,
     EvaluatesWithTheBuffersOfRankZeroAndLeavesThemOnEveryRank) {
  constexpr int kRanks = 3;
  const Dataset train = NumberedDataset(kSamples);
  const Dataset test = NumberedDataset(3 * Trainer::kEvaluationBatch);
  struct Run {
    std::vector<double> created;
    std::vector<double> trained;
    std::vector<double> left;
    std::vector<std::vector<double>> evaluated_with;
  };
  std::vector<Run> runs(kRanks);
  const auto rank_run = [&](Communicator& communicator) -> absl::Status {
    Run& run = runs[communicator.rank()];
    BufferReadingModel model;
    model.buffers().floats()[0] = 10.0f * (1.0f + communicator.rank());
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<Trainer> trainer,
        Trainer::Create(communicator, model, train, {.batch_size = 4}));
    run.created = model.State();
    LOCKSTEP_RETURN_IF_ERROR(trainer->TrainEpoch(0, {}).status());
    run.trained = model.State();
    LOCKSTEP_RETURN_IF_ERROR(trainer->Evaluate(test).status());
    run.left = model.State();
    run.evaluated_with = model.evaluated_with;
    return absl::OkStatus();
  };
  EXPECT_THAT(RunRanks(Backend::kThreads, kRanks, rank_run), Each(IsOk()));
  const Run& first = runs[0];
  EXPECT_EQ(first.created, std::vector<double>({10, 0, 0}));
  for (int rank = 0; rank < kRanks; ++rank) {
    const Run& run = runs[rank];
    EXPECT_EQ(run.created, first.created);
    EXPECT_EQ(run.left, first.trained);
    EXPECT_THAT(run.evaluated_with, ElementsAreArray({first.trained}));
    // Else there would have been nothing to broadcast.
    if (rank > 0) {
      EXPECT_NE(run.trained, first.trained);
    }
  }
}

}  // namespace
}  // namespace lockstep
