// The training and evaluation loops of one rank.
#include "models/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "models/data/dataset.h"
#include "models/data/image.h"
#include "models/data/loader.h"
#include "models/data/transform.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/optimizer.h"
#include "models/train/data_parallel.h"
#include "models/train/metrics.h"
#include "models/train/rank_steps.h"
#include "sampler/distributed_sampler.h"
#include "sampler/sampler.h"
#include "sampler/shard.h"

namespace lockstep {
namespace {

// The labels of mixed images, in the form of a Batch.
struct Mixtures {
  std::vector<int32_t> labels;
  std::vector<float> shares;

  void Take(std::span<const SampleLabel> mixed) {
    labels.clear();
    shares.clear();
    for (const SampleLabel& label : mixed) {
      labels.push_back(label.other);
      shares.push_back(label.share);
    }
  }
};

}  // namespace

absl::StatusOr<NetworkInput> InputOf(const Dataset& train,
                                     const TransformOptions& transform) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Transform checked,
                            Transform::Create(transform, train));
  const ImageShape shape = checked.shape();
  return NetworkInput{.channels = shape.channels,
                      .height = shape.height,
                      .width = shape.width,
                      .classes = train.num_classes()};
}

int64_t ReportInterval(int64_t steps_per_epoch, int64_t reports) {
  return reports == 0 ? 1 : std::max<int64_t>(1, steps_per_epoch / reports);
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(
    Communicator& communicator, Model& model, const Dataset& train,
    const TrainerOptions& options, std::unique_ptr<Sampler> sampler) {
  LOCKSTEP_RETURN_IF_ERROR(CheckOptimizer(options.optimizer));
  auto steps = std::make_unique<ModelSteps>(
      communicator, model, options.bucket_bytes, options.optimizer);
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<Trainer> trainer,
      Create(communicator, *steps, train, options, std::move(sampler)));
  trainer->model_steps_ = std::move(steps);
  return trainer;
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(
    Communicator& communicator, RankSteps& steps, const Dataset& train,
    const TrainerOptions& options, std::unique_ptr<Sampler> sampler) {
  if (!(options.learning_rate > 0) || !std::isfinite(options.learning_rate)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "learning rate is ", options.learning_rate, ", must be positive"));
  }
  if (train.size() < 1) {
    return absl::InvalidArgumentError("the training set is empty");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const Transform transform,
                            Transform::Create(options.transform, train));
  const bool strided = options.sharding == Sharding::kStrided;
  if (sampler == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        DistributedSampler shuffled,
        DistributedSampler::Create(
            {.dataset_size = train.size(),
             .world_size = strided ? communicator.world_size() : 1,
             .rank = strided ? communicator.rank() : 0,
             .seed = static_cast<int64_t>(options.seed)}));
    sampler = std::make_unique<DistributedSampler>(std::move(shuffled));
  }
  // Positions are counted up to the size of the data set, not of the padded
  // list. The batches of every world size are therefore those of one rank.
  LOCKSTEP_ASSIGN_OR_RETURN(
      const GlobalBatches batches,
      GlobalBatches::Create(train.size(), options.batch_size,
                            strided ? communicator.world_size() : 1));
  LOCKSTEP_RETURN_IF_ERROR(steps.Begin());
  return std::unique_ptr<Trainer>(new Trainer(communicator, steps, train,
                                              options, std::move(sampler),
                                              batches, transform));
}

Trainer::Trainer(Communicator& communicator, RankSteps& steps,
                 const Dataset& train, const TrainerOptions& options,
                 std::unique_ptr<Sampler> sampler, const GlobalBatches& batches,
                 const Transform& transform)
    : communicator_(communicator),
      steps_(steps),
      train_(train),
      options_(options),
      sampler_(std::move(sampler)),
      batches_(batches),
      source_(train, transform, options.loader.workers) {}

absl::StatusOr<Metrics> Trainer::TrainEpoch(
    int64_t epoch, const std::function<bool(const StepReport&)>& on_step) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point start = Clock::now();
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                            DrawIndices(epoch));
  std::vector<std::vector<int64_t>> shards;
  for (int64_t step = 0; step < batches_.num_batches(); ++step) {
    const std::span<const int64_t> shard = ShardOf(indices, step);
    shards.emplace_back(shard.begin(), shard.end());
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Loader> loader,
                            Loader::Create(source_, options_.seed, epoch,
                                           std::move(shards), options_.loader));
  Mixtures mixtures;
  StepReport report;
  report.epoch = epoch;
  report.steps_per_epoch = batches_.num_batches();
  const int64_t interval =
      ReportInterval(report.steps_per_epoch, options_.reports_per_epoch);
  Metrics metrics;
  for (int64_t step = 0; step < report.steps_per_epoch; ++step) {
    LOCKSTEP_ASSIGN_OR_RETURN(const LoadedBatch loaded, loader->Next());
    if (source_.mixes()) mixtures.Take(loaded.mixed);
    const Batch shard = {.images = loaded.images,
                         .labels = loaded.labels,
                         .other_labels = mixtures.labels,
                         .shares = mixtures.shares,
                         .samples = ShardOf(indices, step),
                         .seed = options_.seed,
                         .step = epoch * report.steps_per_epoch + step};
    const Clock::time_point gathered = Clock::now();
    report.step = step;
    report.global_samples = batches_.CountInBatch(step);
    const bool with_metrics =
        (step + 1) % interval == 0 || step + 1 == report.steps_per_epoch;
    LOCKSTEP_ASSIGN_OR_RETURN(
        const StepResult result,
        steps_.Step(shard, report.global_samples, options_.learning_rate,
                    with_metrics));
    report.shard_metrics = result.metrics;
    report.times = result.times;
    report.skipped_steps = result.skipped_steps;
    report.times.data_wait = absl::FromChrono(gathered - start);
    report.wall = absl::FromChrono(Clock::now() - start);
    metrics += result.metrics;
    if (on_step && !on_step(report)) break;
    start = Clock::now();
  }
  return AllReduceMetrics(communicator_, metrics);
}

absl::StatusOr<std::vector<int64_t>> Trainer::DrawIndices(int64_t epoch) {
  sampler_->SetEpoch(epoch);
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<int64_t> indices, sampler_->Indices());
  const bool strided = options_.sharding == Sharding::kStrided;
  const int64_t needed = batches_
                             .SliceOf(strided ? communicator_.rank() : 0,
                                      batches_.num_batches() - 1)
                             .end;
  if (static_cast<int64_t>(indices.size()) < needed) {
    return absl::OutOfRangeError(
        absl::StrCat("the sampler drew ", indices.size(), " indices for rank ",
                     communicator_.rank(), " in epoch ", epoch, ", but ",
                     needed, " are needed"));
  }
  const auto bad = std::find_if(
      indices.begin(), indices.end(),
      [this](int64_t index) { return index < 0 || index >= train_.size(); });
  if (bad != indices.end()) {
    return absl::OutOfRangeError(absl::StrCat("the sampler drew index ", *bad,
                                              " from a data set of ",
                                              train_.size(), " samples"));
  }
  return indices;
}

std::span<const int64_t> Trainer::ShardOf(std::span<const int64_t> indices,
                                          int64_t step) const {
  if (options_.sharding == Sharding::kStrided) {
    const BatchSlice slice = batches_.SliceOf(communicator_.rank(), step);
    return indices.subspan(slice.begin, slice.size());
  }
  const BatchSlice global = batches_.SliceOf(/*rank=*/0, step);
  const Shard shard = SplitBatch(global.size(), communicator_.world_size(),
                                 communicator_.rank());
  return indices.subspan(global.begin + shard.begin, shard.size());
}

absl::StatusOr<Metrics> Trainer::Evaluate(const Dataset& dataset) {
  LOCKSTEP_RETURN_IF_ERROR(steps_.BroadcastBuffers());
  const int64_t batches =
      (dataset.size() + kEvaluationBatch - 1) / kEvaluationBatch;
  const Shard shard =
      ExactShard(batches, communicator_.world_size(), communicator_.rank());
  std::vector<std::vector<int64_t>> shards;
  for (int64_t batch = shard.begin; batch < shard.end; ++batch) {
    const int64_t begin = batch * kEvaluationBatch;
    shards.emplace_back(std::min(kEvaluationBatch, dataset.size() - begin));
    std::iota(shards.back().begin(), shards.back().end(), begin);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const Transform transform,
      Transform::Create(options_.evaluation_transform, dataset));
  ImageSource source(dataset, transform, options_.loader.workers);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Loader> loader,
                            Loader::Create(source, options_.seed, /*epoch=*/0,
                                           std::move(shards), options_.loader));
  AverageMeter loss;
  int64_t correct = 0;
  for (int64_t batch = shard.begin; batch < shard.end; ++batch) {
    LOCKSTEP_ASSIGN_OR_RETURN(const LoadedBatch loaded, loader->Next());
    LOCKSTEP_ASSIGN_OR_RETURN(
        const Metrics part,
        steps_.Evaluate({.images = loaded.images, .labels = loaded.labels}));
    loss.UpdateSum(part.loss_sum, part.samples);
    correct += part.correct;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(loss, AllReduceMeter(communicator_, loss));
  LOCKSTEP_RETURN_IF_ERROR(
      communicator_.AllReduce(std::span<int64_t>(&correct, 1)));
  if (loss.count() != dataset.size()) {
    return absl::InternalError(absl::StrCat("evaluation counted ", loss.count(),
                                            " samples of a data set of ",
                                            dataset.size()));
  }
  return Metrics{loss.sum(), correct, loss.count()};
}

}  // namespace lockstep
