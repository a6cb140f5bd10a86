// Tests of which rank trains on and evaluates which samples, at several numbers
// of ranks; and of progress lines.
#include "models/train/trainer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/model.h"
#include "models/train/metrics.h"
#include "models/train/test_inputs.h"
#include "models/train/train_run.h"
#include "sampler/distributed_sampler.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

constexpr int64_t kSamples = 13;
using Batches = std::vector<std::vector<int64_t>>;

// Returns the order of an epoch, from the sampler itself.
std::vector<int64_t> EpochOrder(uint64_t seed, int64_t epoch) {
  absl::StatusOr<DistributedSampler> sampler = DistributedSampler::Create(
      {.dataset_size = kSamples, .seed = static_cast<int64_t>(seed)});
  EXPECT_THAT(sampler, IsOk());
  sampler->SetEpoch(epoch);
  return sampler->Indices().value();
}

// Runs `fn` on ranks that are threads; expects success.
void OnRanks(int world_size,
             const std::function<absl::Status(Communicator&)>& fn) {
  EXPECT_THAT(RunRanks(Backend::kThreads, world_size, fn), Each(IsOk()));
}

struct RankRun {
  Batches trained;
  std::vector<CountingModel::MaskKeys> mask_keys;
  std::vector<StepReport> reports;
  Metrics metrics;
};

// Trains one epoch on each rank and returns the batches that the ranks saw.
std::vector<RankRun> TrainOneEpoch(int world_size,
                                   const TrainerOptions& options,
                                   int64_t epoch) {
  const MemoryDataset dataset = NumberedDataset(kSamples);
  std::vector<RankRun> runs(world_size);
  OnRanks(world_size, [&](Communicator& communicator) -> absl::Status {
    RankRun& run = runs[communicator.rank()];
    CountingModel model;
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<Trainer> trainer,
        Trainer::Create(communicator, model, dataset, options));
    LOCKSTEP_ASSIGN_OR_RETURN(
        run.metrics, trainer->TrainEpoch(epoch, [&](const StepReport& report) {
          run.reports.push_back(report);
          return true;
        }));
    run.trained = model.trained;
    run.mask_keys = model.mask_keys;
    return absl::OkStatus();
  });
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

// Returns the rank's part of each global batch, from the definition. The model
// is called in every step, even if a rank has no sample.
Batches PartsOf(int rank, const Case& c, Sharding sharding,
                const std::vector<int64_t>& order) {
  Batches parts;
  for (int64_t begin = 0; begin < kSamples; begin += c.batch_size) {
    const int64_t end = std::min(kSamples, begin + c.batch_size);
    // Pieces are cut as by torch.chunk: all but the last have ceil(n / P)
    // samples.
    const int64_t piece = (end - begin + c.world_size - 1) / c.world_size;
    parts.emplace_back();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t taker = sharding == Sharding::kContiguous
                                ? (i - begin) / piece
                                : i % c.world_size;
      if (taker == rank) parts.back().push_back(order[i]);
    }
  }
  return parts;
}

TEST_P(ShardingTest, RanksTakeTheirPartsOfEachBatchAndReportAllSamples) {
  const auto [world_size, batch_size] = GetParam();
  const std::vector<int64_t> order = EpochOrder(/*seed=*/5, /*epoch=*/2);
  const int64_t steps = (kSamples + batch_size - 1) / batch_size;
  Metrics want;
  for (int64_t i = 0; i < kSamples; ++i) {
    want += {static_cast<double>(i % 5), i % 2 == 0 ? 1 : 0, 1};
  }
  EXPECT_EQ(TrainerOptions().sharding, Sharding::kStrided);
  for (const Sharding sharding : {Sharding::kContiguous, Sharding::kStrided}) {
    const std::vector<RankRun> runs = TrainOneEpoch(
        world_size, {.batch_size = batch_size, .seed = 5, .sharding = sharding},
        /*epoch=*/2);
    for (int rank = 0; rank < world_size; ++rank) {
      const RankRun& run = runs[rank];
      EXPECT_EQ(run.trained, PartsOf(rank, GetParam(), sharding, order));
      EXPECT_EQ(run.metrics.loss_sum, want.loss_sum);
      EXPECT_EQ(run.metrics.correct, want.correct);
      EXPECT_EQ(run.metrics.samples, kSamples);
      ASSERT_THAT(run.reports, SizeIs(steps));
      ASSERT_THAT(run.trained, SizeIs(steps));
      ASSERT_THAT(run.mask_keys, SizeIs(steps));
      for (int64_t step = 0; step < steps; ++step) {
        const StepReport& report = run.reports[step];
        EXPECT_EQ(report.epoch, 2);
        EXPECT_EQ(report.step, step);
        // The keys are those of the samples and of the run's step, so a
        // sample's masks are the same on any number of ranks.
        EXPECT_EQ(
            run.mask_keys[step],
            (CountingModel::MaskKeys{run.trained[step], 5, 2 * steps + step}));
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
  const MemoryDataset dataset = NumberedDataset(kSamples);
  return RunRanks(
      Backend::kThreads, 1, [&](Communicator& communicator) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                                  Trainer::Create(communicator, model, dataset,
                                                  options, std::move(sampler)));
        return fn(*trainer);
      })[0];
}

TEST(TrainerTest, EndsAnEpochEarlyWhenTold) {
  CountingModel model;
  const auto two_steps = [](Trainer& trainer) -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const Metrics metrics,
        trainer.TrainEpoch(
            0, [](const StepReport& report) { return report.step < 1; }));
    EXPECT_EQ(metrics.samples, 8);
    return absl::OkStatus();
  };
  EXPECT_THAT(WithTrainer(model, nullptr, {.batch_size = 4}, two_steps),
              IsOk());
  EXPECT_THAT(model.trained, SizeIs(2));
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
         "learning rate is nan"},
        {TrainerOptions{.optimizer = {.momentum = -1}}, "momentum=-1"},
        {TrainerOptions{.transform = {.flip = 2}}, "flip is 2"}}) {
    EXPECT_THAT(
        WithTrainer(model, nullptr, options, nothing),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
}

// Records the data of batches other than images and labels.
class KeyedModel : public CountingModel {
 public:
  absl::StatusOr<Metrics> ForwardBackward(const Batch& batch, float,
                                          GradientReady ready) override {
    for (int p = parameters().count(); p-- > 0;) ready(p);
    std::ranges::fill(parameters().gradients(), 0.0f);
    for (size_t i = 0; i < batch.samples.size(); ++i) {
      samples.push_back(batch.samples[i]);
      steps.push_back(batch.step);
      if (!batch.shares.empty()) shares.push_back(batch.shares[i]);
    }
    EXPECT_EQ(batch.samples.size(), batch.labels.size());
    EXPECT_EQ(batch.other_labels.size(), batch.shares.size());
    EXPECT_EQ(batch.seed, 5u);
    return Metrics{.samples = std::ssize(batch.labels)};
  }

  std::vector<int64_t> samples, steps;
  std::vector<float> shares;
};

TEST(TrainerTest, TellsTheModelSamplesStepsAndMixtures) {
  for (const double mixup : {0.0, 1.0}) {
    KeyedModel model;
    const TrainerOptions options = {
        .batch_size = 4, .seed = 5, .transform = {.mixup = mixup}};
    ASSERT_THAT(WithTrainer(model, nullptr, options,
                            [](Trainer& trainer) -> absl::Status {
                              LOCKSTEP_RETURN_IF_ERROR(
                                  trainer.TrainEpoch(0, nullptr).status());
                              return trainer.TrainEpoch(1, nullptr).status();
                            }),
                IsOk());
    const int64_t steps = model.steps.back() + 1;
    EXPECT_EQ(std::ssize(std::set(model.steps.begin(), model.steps.end())),
              steps);
    EXPECT_EQ(steps % 2, 0);  // Both epochs have as many, and none in common.
    std::vector<int64_t> sorted = model.samples;
    std::ranges::sort(sorted);
    for (size_t i = 0; i < sorted.size(); ++i) {
      EXPECT_EQ(sorted[i], static_cast<int64_t>(i / 2));
    }
    EXPECT_EQ(model.shares.size(), mixup > 0 ? model.samples.size() : 0);
    for (const float share : model.shares) {
      EXPECT_GE(share, 0);
      EXPECT_LE(share, 1);
    }
  }
}

// A sampler that returns given indices.
class FixedSampler : public Sampler {
 public:
  explicit FixedSampler(std::vector<int64_t> indices)
      : indices_(std::move(indices)) {}
  void SetEpoch(int64_t) override {}
  absl::StatusOr<std::vector<int64_t>> Indices() override { return indices_; }

 private:
  std::vector<int64_t> indices_;
};

absl::Status TrainOne(Trainer& trainer) {
  return trainer.TrainEpoch(0, {}).status();
}

// Numbered samples, one of which cannot be read.
class DamagedDataset : public Dataset {
 public:
  int64_t size() const override { return kSamples; }
  int num_classes() const override { return good_.num_classes(); }
  int label(int64_t index) const override { return good_.label(index); }
  std::optional<ImageShape> shape() const override { return good_.shape(); }
  absl::StatusOr<Image> Read(int64_t index) const override {
    if (index == 7) return absl::DataLossError("7.jpg: damaged");
    return good_.Read(index);
  }

 private:
  const MemoryDataset good_ = NumberedDataset(kSamples);
};

TEST(TrainerTest, ReportsABadImageAtTheStepThatNeedsIt) {
  const DamagedDataset dataset;
  std::vector<int64_t> forwards(kSamples);
  std::iota(forwards.begin(), forwards.end(), 0);
  for (const int workers : {0, 2}) {
    CountingModel model;
    TrainerOptions options = {.batch_size = 3};
    options.loader.workers = workers;
    OnRanks(1, [&](Communicator& communicator) -> absl::Status {
      LOCKSTEP_ASSIGN_OR_RETURN(
          const std::unique_ptr<Trainer> trainer,
          Trainer::Create(communicator, model, dataset, options,
                          std::make_unique<FixedSampler>(forwards)));
      const auto is_damaged =
          StatusIs(absl::StatusCode::kDataLoss, "7.jpg: damaged");
      EXPECT_THAT(TrainOne(*trainer), is_damaged);
      EXPECT_THAT(model.trained, SizeIs(2));
      EXPECT_THAT(trainer->Evaluate(dataset).status(), is_damaged);
      return absl::OkStatus();
    });
  }
}

TEST(TrainerTest, TrainsInTheOrderOfAGivenSampler) {
  std::vector<int64_t> backwards(kSamples);
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  CountingModel model;
  EXPECT_THAT(WithTrainer(model, std::make_unique<FixedSampler>(backwards),
                          {.batch_size = 13}, TrainOne),
              IsOk());
  EXPECT_THAT(model.trained, ElementsAreArray({backwards}));
}

TEST(TrainerTest, RefusesASamplerThatDrawsTooLittleOrBeyondTheDataSet) {
  using Indices = std::vector<int64_t>;
  for (const auto& [drawn, message] :
       {std::pair(Indices(kSamples - 1),
                  "drew 12 indices for rank 0 in epoch 0, but 13 are needed"),
        {Indices(kSamples, kSamples), "drew index 13"},
        {Indices(kSamples, -1), "drew index -1"}}) {
    CountingModel model;
    EXPECT_THAT(
        WithTrainer(model, std::make_unique<FixedSampler>(drawn), {}, TrainOne),
        StatusIs(absl::StatusCode::kOutOfRange, HasSubstr(message)));
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
  const MemoryDataset test = NumberedDataset(7);
  EXPECT_THAT(WithTrainer(model, nullptr, {},
                          [&](Trainer& trainer) {
                            return trainer.Evaluate(test).status();
                          }),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("counted 14 samples of a data set of 7")));
}

// Tests of evaluation: the samples, their ranks, and the buffers. The batches
// must be those of one rank.
TEST(TrainerEvaluationTest, EvaluatesEverySampleExactlyOnce) {
  constexpr int64_t kBatch = Trainer::kEvaluationBatch;
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{7}, kBatch,
                             kBatch + 1, 9 * kBatch + 78}) {
    const MemoryDataset test = NumberedDataset(size);
    const MemoryDataset train = NumberedDataset(1);
    Batches want;
    for (int64_t i = 0; i < size; ++i) {
      if (i % kBatch == 0) want.emplace_back();
      want.back().push_back(i);
    }
    for (int world_size = 1; world_size <= 4; ++world_size) {
      std::vector<Batches> evaluated(world_size);
      OnRanks(world_size, [&](Communicator& communicator) -> absl::Status {
        CountingModel model;
        LOCKSTEP_ASSIGN_OR_RETURN(
            const std::unique_ptr<Trainer> trainer,
            Trainer::Create(communicator, model, train, {}));
        LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics,
                                  trainer->Evaluate(test));
        evaluated[communicator.rank()] = model.evaluated;
        return metrics.samples == size && metrics.correct == (size + 1) / 2
                   ? absl::OkStatus()
                   : absl::InternalError("wrong metrics");
      });
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

// Records the buffers that it evaluates with.
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
  const MemoryDataset train = NumberedDataset(kSamples);
  const MemoryDataset test = NumberedDataset(3 * Trainer::kEvaluationBatch);
  // The buffers of each rank after Create, after TrainEpoch and after Evaluate.
  std::vector<std::vector<double>> created(kRanks), trained(kRanks),
      left(kRanks);
  std::vector<std::vector<std::vector<double>>> evaluated_with(kRanks);
  OnRanks(kRanks, [&](Communicator& communicator) -> absl::Status {
    const int rank = communicator.rank();
    BufferReadingModel model;
    model.buffers().floats()[0] = 10.0f * (1.0f + rank);
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::unique_ptr<Trainer> trainer,
        Trainer::Create(communicator, model, train, {.batch_size = 4}));
    created[rank] = model.State();
    LOCKSTEP_RETURN_IF_ERROR(trainer->TrainEpoch(0, {}).status());
    trained[rank] = model.State();
    LOCKSTEP_RETURN_IF_ERROR(trainer->Evaluate(test).status());
    left[rank] = model.State();
    evaluated_with[rank] = model.evaluated_with;
    return absl::OkStatus();
  });
  EXPECT_THAT(created, Each(std::vector<double>({10, 0, 0})));
  EXPECT_THAT(left, Each(trained[0]));
  EXPECT_THAT(evaluated_with,
              Each(std::vector<std::vector<double>>({trained[0]})));
  // If all ranks had equal buffers, a broadcast would not show.
  EXPECT_NE(trained[1], trained[0]);
  EXPECT_NE(trained[2], trained[0]);
}

// Tests of progress lines: their text, how often they come, and that all ranks
// add to them.
//
// Returns the lines that rank 0 and then rank 1 print for an epoch of `steps`
// steps of the given length. In each step rank r has r + 1 samples of loss r +
// 1, all correct on rank 0 and none on rank 1.
std::vector<std::string> PrintEpoch(int64_t steps, absl::Duration wall,
                                    bool rewrite = false) {
  std::vector<std::ostringstream> outs(2);
  OnRanks(2, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    TrainingProgress progress(communicator, /*epochs=*/10, outs[rank], rewrite);
    for (int64_t step = 0; step < steps; ++step) {
      StepReport report;
      report.epoch = 1;
      report.step = step;
      report.steps_per_epoch = steps;
      report.global_samples = 3;
      report.shard_metrics = {(rank + 1.0) * (rank + 1), 1 - rank, rank + 1};
      report.wall = wall;
      LOCKSTEP_RETURN_IF_ERROR(progress.OnStep(report));
    }
    EpochSummary summary;
    summary.epoch = 1;
    summary.train = {6.0, 3, 4};
    summary.test = {1.0, 7, 8};
    summary.train_time = absl::Milliseconds(500);
    summary.times.data_wait = absl::Milliseconds(rank == 0 ? 62 : 400);
    progress.OnEpoch(summary);
    return absl::OkStatus();
  });
  return {outs[0].str(), outs[1].str()};
}

constexpr char kSummary[] =
    "epoch  2/10  loss 1.5000  accuracy 0.750  test accuracy 0.8750  "
    "8 images/s  0.5 s  data 12.4%\n";

TEST(ProgressTest, WeighsRanksBySamplesAndPrintsOnRankZeroOnly) {
  const std::vector<std::string> printed = PrintEpoch(2, absl::Seconds(2));
  EXPECT_EQ(printed[0],
            std::string("epoch  2/10  step 1/2  loss 1.6667  accuracy 0.333  2 "
                        "images/s\n"
                        "epoch  2/10  step 2/2  loss 1.6667  accuracy 0.333  2 "
                        "images/s\n") +
                kSummary);
  EXPECT_EQ(printed[1], "");
}

int64_t Lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

TEST(ProgressTest, PrintsTenTimesAnEpochAndAtMostOnceASecond) {
  EXPECT_EQ(Lines(PrintEpoch(235, absl::Seconds(1))[0]), 10 + 1);
  EXPECT_EQ(Lines(PrintEpoch(5, absl::Seconds(1))[0]), 5 + 1);
  // A tenth of the epoch takes 23 steps of 20 ms. The first tenth prints a
  // line, and then every third does.
  EXPECT_EQ(Lines(PrintEpoch(235, absl::Milliseconds(20))[0]), 4 + 1);
  EXPECT_EQ(Lines(PrintEpoch(235, absl::Milliseconds(1))[0]), 1 + 1);
}

TEST(ProgressTest, PrintsAnEpochInAHundredColumns) {
  std::ostringstream out;
  OnRanks(1, [&](Communicator& communicator) {
    TrainingProgress progress(communicator, /*epochs=*/100, out, false);
    EpochSummary summary;
    summary.epoch = 99;
    summary.train = {2.25 * (1 << 20), 1 << 20, 1 << 20};
    summary.test = {1.0, 1, 1};
    summary.train_time = absl::Milliseconds(99'900);
    summary.times.data_wait = absl::Milliseconds(99'800);
    progress.OnEpoch(summary);
    return absl::OkStatus();
  });
  EXPECT_EQ(out.str(),
            "epoch 100/100  loss 2.2500  accuracy 1.000  test accuracy 1.0000  "
            "10496 images/s  99.9 s  data 99.9%\n");
  EXPECT_LE(out.str().size(), 101);  // With the line end.
}

TEST(ProgressTest, RewritesTheLineOnATerminal) {
  EXPECT_EQ(PrintEpoch(1, absl::Seconds(3), /*rewrite=*/true)[0],
            std::string("\x1b[2Kepoch  2/10  step 1/1  loss 1.6667  accuracy "
                        "0.333  1 images/s\r\x1b[2K") +
                kSummary);
}

}  // namespace
}  // namespace lockstep
