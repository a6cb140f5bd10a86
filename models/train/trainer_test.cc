// Who trains on what, at several numbers of ranks.
#include "models/train/trainer.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/train/counting_model.h"
#include "sampler/distributed_sampler.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::SizeIs;

constexpr int64_t kSamples = 13;
using Batches = std::vector<std::vector<int64_t>>;

// The order of an epoch, from the sampler itself.
std::vector<int64_t> EpochOrder(uint64_t seed, int64_t epoch) {
  absl::StatusOr<DistributedSampler> sampler = DistributedSampler::Create(
      {.dataset_size = kSamples, .seed = static_cast<int64_t>(seed)});
  EXPECT_THAT(sampler, IsOk());
  sampler->SetEpoch(epoch);
  return sampler->Indices().value();
}

struct RankRun {
  Batches trained;
  Batches evaluated;
  std::vector<StepReport> reports;
  Metrics metrics;
};

// Trains one epoch on each rank and returns what the ranks saw.
std::vector<RankRun> TrainOneEpoch(int world_size,
                                   const TrainerOptions& options,
                                   int64_t epoch) {
  const Dataset dataset = NumberedDataset(kSamples);
  std::vector<RankRun> runs(world_size);
  const std::vector<absl::Status> statuses = RunRanks(
      Backend::kThreads, world_size,
      [&](Communicator& communicator) -> absl::Status {
        RankRun& run = runs[communicator.rank()];
        CountingModel model;
        LOCKSTEP_ASSIGN_OR_RETURN(
            const std::unique_ptr<Trainer> trainer,
            Trainer::Create(communicator, model, dataset, options));
        LOCKSTEP_ASSIGN_OR_RETURN(
            run.metrics, trainer->TrainEpoch(epoch, [&](const StepReport& r) {
              run.reports.push_back(r);
              return true;
            }));
        run.trained = model.trained();
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  return runs;
}

struct Case {
  int world_size;
  int64_t batch_size;
};

class ShardingTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Worlds, ShardingTest,
                         testing::Values(Case{1, 4}, Case{2, 4}, Case{3, 4},
                                         Case{4, 5}, Case{3, 10}, Case{4, 1},
                                         Case{2, 13}, Case{3, 100}, Case{5, 2}),
                         [](const auto& info) {
                           return absl::StrCat("P", info.param.world_size,
                                               "Batch", info.param.batch_size);
                         });

// Batch `step` of the epoch order.
std::vector<int64_t> GlobalBatch(const std::vector<int64_t>& order,
                                 int64_t batch_size, int64_t step) {
  const int64_t begin = step * batch_size;
  const int64_t end = std::min(kSamples, begin + batch_size);
  return {order.begin() + begin, order.begin() + end};
}

TEST_P(ShardingTest, ContiguousRanksTakeBlocksInRankOrder) {
  const auto [world_size, batch_size] = GetParam();
  const std::vector<int64_t> order = EpochOrder(/*seed=*/5, /*epoch=*/2);
  const std::vector<RankRun> runs = TrainOneEpoch(
      world_size,
      {.batch_size = batch_size, .seed = 5, .sharding = Sharding::kContiguous},
      /*epoch=*/2);
  for (size_t step = 0; step < runs[0].trained.size(); ++step) {
    const std::vector<int64_t> want = GlobalBatch(order, batch_size, step);
    // As torch.chunk: all pieces but the last have ceil(n / P) samples.
    const size_t piece = (want.size() + world_size - 1) / world_size;
    std::vector<int64_t> got;
    for (const RankRun& run : runs) {
      EXPECT_EQ(run.trained[step].size(),
                std::min(piece, want.size() - got.size()));
      got.insert(got.end(), run.trained[step].begin(), run.trained[step].end());
    }
    EXPECT_EQ(got, want) << step;
  }
}

TEST_P(ShardingTest, StridedRanksTakeEveryPthSampleOfTheSameBatches) {
  const auto [world_size, batch_size] = GetParam();
  const std::vector<int64_t> order = EpochOrder(/*seed=*/5, /*epoch=*/2);
  const std::vector<RankRun> runs = TrainOneEpoch(
      world_size, {.batch_size = batch_size, .seed = 5}, /*epoch=*/2);
  for (int rank = 0; rank < world_size; ++rank) {
    Batches want;
    for (int64_t begin = 0; begin < kSamples; begin += batch_size) {
      want.emplace_back();
      for (int64_t i = begin; i < std::min(kSamples, begin + batch_size); ++i) {
        if (i % world_size == rank) want.back().push_back(order[i]);
      }
    }
    EXPECT_EQ(runs[rank].trained, want) << rank;
  }
}

TEST_P(ShardingTest, ReportsEveryStepAndTheMetricsOfAllSamples) {
  const auto [world_size, batch_size] = GetParam();
  Metrics want;
  for (int64_t i = 0; i < kSamples; ++i) {
    want += {static_cast<double>(i % 5), i % 2 == 0 ? 1 : 0, 1};
  }
  const int64_t steps = (kSamples + batch_size - 1) / batch_size;
  for (const RankRun& run :
       TrainOneEpoch(world_size, {.batch_size = batch_size}, /*epoch=*/3)) {
    EXPECT_EQ(run.metrics.loss_sum, want.loss_sum);
    EXPECT_EQ(run.metrics.correct, want.correct);
    EXPECT_EQ(run.metrics.samples, kSamples);
    ASSERT_THAT(run.reports, SizeIs(steps));
    for (int64_t step = 0; step < steps; ++step) {
      const StepReport& report = run.reports[step];
      EXPECT_EQ(report.epoch, 3);
      EXPECT_EQ(report.step, step);
      EXPECT_EQ(report.steps_per_epoch, steps);
      EXPECT_EQ(report.global_samples,
                std::min(batch_size, kSamples - step * batch_size));
      EXPECT_EQ(report.shard_metrics.samples,
                static_cast<int64_t>(run.trained[step].size()));
      EXPECT_GE(report.wall, report.times.compute +
                                 report.times.exposed_communication +
                                 report.times.data_wait);
    }
  }
}

TEST(TrainerTest, ShufflesByEpochAndSeed) {
  const auto first = [](uint64_t seed, int64_t epoch) {
    return TrainOneEpoch(1, {.seed = seed}, epoch)[0].trained;
  };
  EXPECT_EQ(first(0, 1), first(0, 1));
  EXPECT_NE(first(0, 1), first(0, 2));
  EXPECT_NE(first(0, 1), first(7, 1));
}

// Runs `fn` with a trainer of one rank over kSamples samples.
template <typename Fn>
absl::Status WithTrainer(Model& model, std::unique_ptr<Sampler> sampler,
                         const TrainerOptions& options, const Fn& fn) {
  const Dataset dataset = NumberedDataset(kSamples);
  return RunRanks(
      Backend::kThreads, 1, [&](Communicator& communicator) -> absl::Status {
        absl::StatusOr<std::unique_ptr<Trainer>> trainer =
            sampler == nullptr
                ? Trainer::Create(communicator, model, dataset, options)
                : Trainer::Create(communicator, model, dataset, options,
                                  std::move(sampler));
        LOCKSTEP_RETURN_IF_ERROR(trainer.status());
        return fn(**trainer);
      })[0];
}

TEST(TrainerTest, EndsAnEpochEarlyWhenTold) {
  CountingModel model;
  EXPECT_THAT(
      WithTrainer(model, nullptr, {.batch_size = 4},
                  [](Trainer& trainer) -> absl::Status {
                    LOCKSTEP_ASSIGN_OR_RETURN(
                        const Metrics metrics,
                        trainer.TrainEpoch(0, [](const StepReport& report) {
                          return report.step < 1;
                        }));
                    EXPECT_EQ(metrics.samples, 8);
                    return absl::OkStatus();
                  }),
      IsOk());
  EXPECT_THAT(model.trained(), SizeIs(2));
}

TEST(TrainerTest, RefusesOptionsThatCannotTrain) {
  CountingModel model;
  const auto nothing = [](Trainer&) { return absl::OkStatus(); };
  for (const auto& [options, message] :
       {std::pair(TrainerOptions{.batch_size = 0}, "batch_size"),
        {TrainerOptions{.learning_rate = 0}, "learning rate is 0"},
        {TrainerOptions{.learning_rate = -1}, "learning rate is -1"},
        {TrainerOptions{.learning_rate =
                            std::numeric_limits<float>::quiet_NaN()},
         "learning rate is nan"}}) {
    EXPECT_THAT(
        WithTrainer(model, nullptr, options, nothing),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
}

// A sampler that says what it is told to.
class FixedSampler : public Sampler {
 public:
  explicit FixedSampler(std::vector<int64_t> indices)
      : indices_(std::move(indices)) {}
  void SetEpoch(int64_t) override {}
  absl::StatusOr<std::vector<int64_t>> Indices() override { return indices_; }

 private:
  std::vector<int64_t> indices_;
};

TEST(TrainerTest, TrainsInTheOrderOfAGivenSampler) {
  std::vector<int64_t> backwards(kSamples);
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  CountingModel model;
  EXPECT_THAT(
      WithTrainer(
          model, std::make_unique<FixedSampler>(backwards), {.batch_size = 13},
          [](Trainer& trainer) { return trainer.TrainEpoch(0, {}).status(); }),
      IsOk());
  EXPECT_THAT(model.trained(), ElementsAreArray({backwards}));
}

TEST(TrainerTest, RefusesASamplerThatDrawsTooLittleOrBeyondTheDataSet) {
  std::vector<int64_t> indices(kSamples);
  std::vector<int64_t> few(kSamples - 1);
  std::vector<int64_t> high(kSamples, kSamples);
  std::vector<int64_t> low(kSamples, -1);
  for (const auto& [drawn, message] :
       {std::pair(few, "drew 12 indices for rank 0 in epoch 0, needed 13"),
        {high, "drew index 13"},
        {low, "drew index -1"}}) {
    CountingModel model;
    EXPECT_THAT(WithTrainer(model, std::make_unique<FixedSampler>(drawn), {},
                            [](Trainer& trainer) {
                              return trainer.TrainEpoch(0, {}).status();
                            }),
                StatusIs(absl::StatusCode::kOutOfRange, HasSubstr(message)));
  }
}

// Batches of one sample: a rank has nothing to train on in most steps.
TEST(TrainerTest, CallsTheModelInEveryStepAlsoWithAnEmptyShard) {
  for (const Sharding sharding : {Sharding::kStrided, Sharding::kContiguous}) {
    const std::vector<RankRun> runs =
        TrainOneEpoch(3, {.batch_size = 1, .sharding = sharding}, /*epoch=*/0);
    size_t empty = 0;
    for (const RankRun& run : runs) {
      EXPECT_THAT(run.trained, SizeIs(kSamples));
      for (const auto& batch : run.trained) empty += batch.empty() ? 1 : 0;
    }
    EXPECT_EQ(empty, 2u * kSamples);
  }
}

// Counts every sample twice.
class DoubleCountingModel : public CountingModel {
 public:
  absl::StatusOr<Metrics> Evaluate(const Batch& batch) override {
    LOCKSTEP_ASSIGN_OR_RETURN(Metrics metrics, CountingModel::Evaluate(batch));
    metrics.samples *= 2;
    return metrics;
  }
};

TEST(TrainerTest, RefusesAnEvaluationThatCountsSamplesTwice) {
  DoubleCountingModel model;
  const Dataset test = NumberedDataset(7);
  EXPECT_THAT(WithTrainer(model, nullptr, {},
                          [&](Trainer& trainer) {
                            return trainer.Evaluate(test).status();
                          }),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("counted 14 samples of a data set of 7")));
}

}  // namespace
}  // namespace lockstep
