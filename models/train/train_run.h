// One rank's whole training run: epochs, evaluation, progress, files.
#ifndef LOCKSTEP_MODELS_TRAIN_TRAIN_RUN_H_
#define LOCKSTEP_MODELS_TRAIN_TRAIN_RUN_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "models/data/dataset.h"
#include "models/model.h"
#include "models/train/trainer.h"

namespace lockstep {

// One epoch over all ranks.
struct EpochSummary {
  int64_t epoch = 0;          // From 0.
  Metrics train;              // While the parameters changed.
  Metrics test;               // Of the whole test set, after the epoch.
  absl::Duration train_time;  // Without evaluation.
  StepTimes times;            // Of this rank, summed over the steps.

  double images_per_second() const {
    return static_cast<double>(train.samples) /
           absl::ToDoubleSeconds(train_time);
  }
};

// Prints, on rank 0, a line about ten times an epoch but at most once a second,
//
//   epoch  1/10  step  120/235  loss 2.3012  accuracy 0.112  12345 images/s
//
// with what happened since the line before it, on all ranks together, and a
// line after each epoch. Not thread safe.
class TrainingProgress {
 public:
  // Borrows both. rewrite: `out` is a terminal, on which each line takes the
  // place of the one before it, up to the end of the epoch.
  TrainingProgress(Communicator& communicator, int64_t epochs,
                   std::ostream& out, bool rewrite);

  // To be called after every step on every rank, since it sums over the ranks,
  // at steps that depend on the number of steps alone. Errors: the
  // communicator's.
  absl::Status OnStep(const StepReport& report);

  // To be called after every epoch; prints on rank 0.
  void OnEpoch(const EpochSummary& summary);

 private:
  void Print(const StepReport& report, const Metrics& sum);

  Communicator& communicator_;
  const int64_t epochs_;
  std::ostream& out_;
  const bool rewrite_;
  Metrics shard_;        // Since the last sum.
  Metrics unprinted_;    // Over all ranks, since the last line.
  absl::Duration wall_;  // Since the last line.
  bool printed_ = false;
};

// The options of a run, which are the same on every rank. The caller has
// checked the flags; PrepareRun and LoadData check the files.
struct TrainRunOptions {
  std::string model = "lenet";
  std::string dataset = "fashion_mnist";
  std::string data_dir = kFashionMnistDir;
  std::string parallelism = "single";  // As reports name it.
  // How many images of each part of the data set, from the first on, are used;
  // all without a value.
  std::optional<int64_t> train_samples;
  std::optional<int64_t> test_samples;
  int64_t epochs = 10;  // In all, those of `resume` included.
  // Batch norm over the batches of all ranks. No part of a checkpoint: whether
  // to go on with it is each run's choice.
  bool sync_bn = false;
  int threads_per_rank = 1;
  TrainerOptions trainer;
  std::string output_dir;  // Empty: write no files.
  std::string resume;      // Path of a checkpoint; empty: start anew.
};

// The files of output_dir, which rank 0 replaces after every epoch: a
// checkpoint, which holds the weights, and the numbers of each epoch of this
// run; and, if it goes on from a checkpoint in output_dir, those that the file
// already has of the epochs before, unless they are of another model or seed.
inline constexpr char kCheckpointName[] = "weights.safetensors";
inline constexpr char kMetricsName[] = "metrics.json";

// Checks what does not need a rank: that a checkpoint to resume from fits the
// options and the model and leaves something to do, and that output_dir exists
// or can be created. Errors: one line that names the flag, or the file and, if
// one of its tensors is not the model's, the tensor. Cost: of resuming, once
// more making the model and reading the checkpoint.
absl::Status PrepareRun(const TrainRunOptions& options);

// The data that the options name. Errors: LoadFashionMnist's, none of which is
// kOutOfRange; kOutOfRange, naming the flag, where the data set has fewer
// samples.
absl::StatusOr<FashionMnist> LoadData(const TrainRunOptions& options);

// Trains on the calling thread, printing progress on rank 0's standard output.
// `data`: of LoadData. Resuming after epoch k, with the same options as the
// earlier run, gives bit for bit what a run without the interruption gives.
// With sync_bn, batch norm's messages have a group of their own, since the
// gradients are summed at the same time. Errors: kInvalidArgument for an
// unknown model, or sync_bn with a model that has no batch norm; the trainer's,
// and those of reading and writing files. The caller then leaves the group, so
// that the other ranks learn of it.
absl::Status RunTraining(Communicator& communicator, const FashionMnist& data,
                         const TrainRunOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_TRAIN_RUN_H_
