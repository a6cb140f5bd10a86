// The reference trainer: one rank of a data-parallel run.
#ifndef LOCKSTEP_MODELS_TRAIN_TRAINER_H_
#define LOCKSTEP_MODELS_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "models/data/dataset.h"
#include "models/data/loader.h"
#include "models/data/transform.h"
#include "models/model.h"
#include "models/networks/networks.h"
#include "models/optimizer.h"
#include "models/train/data_parallel.h"
#include "models/train/rank_steps.h"
#include "sampler/sampler.h"
#include "sampler/shard.h"

namespace lockstep {

// How a global batch is divided among the ranks. With either value, the ranks
// together see the batches that one rank alone would see.
enum class Sharding {
  kStrided,     // DistributedSampler: rank r takes positions r, r+P, r+2P, ...
  kContiguous,  // split_batch (d2l, scatter): rank r takes the r-th block.
};

struct TrainerOptions {
  int64_t batch_size = 256;  // Global: over all ranks.
  float learning_rate = 0.2f;
  OptimizerOptions optimizer = {};  // Of ModelSteps that a Trainer makes.
  uint64_t seed = 0;
  Sharding sharding = Sharding::kStrided;
  int64_t bucket_bytes = 0;  // 0: GradientReducer::DefaultBucketBytes.
  // The number of steps in an epoch that are reported with metrics, besides the
  // last one and roughly (ReportInterval); 0: all.
  int64_t reports_per_epoch = 0;
  // The transforms of images. Training images are transformed by random numbers
  // of `seed`, epoch and index; evaluation images without random numbers.
  TransformOptions transform = {};
  TransformOptions evaluation_transform = {};
  LoaderOptions loader = {};
};

// Returns the images and classes that a network must take to train on `train`
// with this transform. Errors: those of Transform::Create.
absl::StatusOr<NetworkInput> InputOf(const Dataset& train,
                                     const TransformOptions& transform);

// Returns the number of steps from one report with metrics to the next.
// reports: as TrainerOptions::reports_per_epoch.
int64_t ReportInterval(int64_t steps_per_epoch, int64_t reports);

// The report of one step, which the trainer makes on every rank.
struct StepReport {
  int64_t epoch = 0;  // From 0.
  int64_t step = 0;   // In the epoch, from 0.
  int64_t steps_per_epoch = 0;
  int64_t global_samples = 0;
  // The sums over this rank's shards since the last report with metrics. Other
  // reports may have no metrics and no times except data_wait
  // (RankSteps::Step).
  Metrics shard_metrics;
  StepTimes times;
  int64_t skipped_steps = 0;  // As in StepResult.
  // The time of the whole step; the first step includes drawing the epoch's
  // order.
  absl::Duration wall;
};

// One rank's trainer. Borrows the communicator, the replica and the data set,
// which no other code may use during a call. Other code may use them between
// calls and in `on_step`. Every rank calls RankSteps::Step for every global
// batch, with an empty batch if its shard is empty. Not thread safe. After an
// error the ranks are no longer in step: destroy the trainer and leave the
// group.
class Trainer {
 public:
  // Calls steps.Begin().
  //
  // sampler: an order of samples to replace the shuffle by seed + epoch (null).
  // For kStrided it returns the indices that this rank visits, padding allowed;
  // for kContiguous, the order of all samples.
  //
  // Errors: kInvalidArgument for a batch size or learning rate that is not
  // positive, an empty data set, or a transform that does not fit it
  // (Transform::Create); those of steps.Begin.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      Communicator& communicator, RankSteps& steps, const Dataset& train,
      const TrainerOptions& options,
      std::unique_ptr<Sampler> sampler = nullptr);
  // The same for ModelSteps of a model on host memory. Error: also that of
  // CheckOptimizer.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      Communicator& communicator, Model& model, const Dataset& train,
      const TrainerOptions& options,
      std::unique_ptr<Sampler> sampler = nullptr);

  // Trains on one pass over the training set, in the order that seed + epoch
  // shuffles it to. Calls `on_step` (which may be empty) after each step. If
  // `on_step` returns false, the epoch ends early; it must do so on every rank
  // at the same step. The padding that makes a sampler's lists equally long on
  // all ranks is not trained on, so every sample counts once.
  //
  // Returns the metrics over all ranks and samples, without those of steps
  // after the last report with metrics if `on_step` ends the epoch. Errors:
  // kOutOfRange if the
  // sampler draws too few indices or one outside the data set; those of reading
  // data, at the step that needs the data; those of RankSteps::Step; the
  // communicator's.
  absl::StatusOr<Metrics> TrainEpoch(
      int64_t epoch, const std::function<bool(const StepReport&)>& on_step);

  // Copies rank 0's buffers to every rank, so that a checkpoint written later
  // by any rank holds the buffers that were evaluated. Then returns the metrics
  // of `dataset` over all ranks. They have the same bits on every rank and at
  // any world size.
  //
  // Batch k is samples [k, k + 1) * kEvaluationBatch on whichever rank computes
  // it. Whole batches are divided among the ranks, so some ranks have one more
  // than others, or none. Their losses are summed exactly, and the sum is
  // rounded once. A batch must therefore give the same bits on every rank. The
  // models here do on machines of one kind with the same number of compute
  // threads.
  //
  // Errors: kInternal if not every sample was counted exactly once; those of
  // Transform::Create and of reading data; the model's; the communicator's.
  absl::StatusOr<Metrics> Evaluate(const Dataset& dataset);

  // The warning of the replica (RankSteps).
  const std::string& warning() const { return steps_.warning(); }

  // Small enough that 10,000 test images are 80 batches, which 2, 4, 5 and 8
  // ranks share equally. A small network's activations also stay in the cache.
  // Large enough that the costs of each call are negligible.
  static constexpr int64_t kEvaluationBatch = 125;

 private:
  Trainer(Communicator& communicator, RankSteps& steps, const Dataset& train,
          const TrainerOptions& options, std::unique_ptr<Sampler> sampler,
          const GlobalBatches& batches, const Transform& transform);

  // Returns the indices that this rank visits in the epoch, checked.
  absl::StatusOr<std::vector<int64_t>> DrawIndices(int64_t epoch);
  // Returns the part of `indices` that is this rank's in global batch `step`.
  std::span<const int64_t> ShardOf(std::span<const int64_t> indices,
                                   int64_t step) const;

  Communicator& communicator_;
  std::unique_ptr<ModelSteps> model_steps_;  // If this object made them.
  RankSteps& steps_;
  const Dataset& train_;
  const TrainerOptions options_;
  const std::unique_ptr<Sampler> sampler_;
  const GlobalBatches batches_;  // As this rank's sampler counts positions.
  ImageSource source_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_TRAINER_H_
