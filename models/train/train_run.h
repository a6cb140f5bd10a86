// The implementation of //models/train:train: one rank's whole run, with
// epochs, evaluation, progress, and checkpoints (checkpoint.h) from which an
// interrupted run resumes.
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
#include "models/cpu/algorithm.h"
#include "models/cuda/precision.h"
#include "models/data/load_dataset.h"
#include "models/train/device.h"
#include "models/train/trainer.h"

namespace lockstep {

// The results of one epoch over all ranks.
struct EpochSummary {
  int64_t epoch = 0;          // From 0.
  Metrics train;              // While the parameters changed.
  Metrics test;               // Of the whole test set, after the epoch.
  absl::Duration train_time;  // Without evaluation.
  StepTimes times;            // Of this rank, summed over the steps.
  int64_t skipped_steps = 0;  // As in StepResult.

  double images_per_second() const {
    return static_cast<double>(train.samples) /
           absl::ToDoubleSeconds(train_time);
  }

  // Returns the share of train_time that this rank waited for data.
  double data_share() const {
    return absl::FDivDuration(times.data_wait, train_time);
  }
};

// Prints progress on rank 0. About ten times an epoch, but at most once a
// second, prints a line with the metrics of all ranks since the previous line:
//
//   epoch  1/10  step  120/235  loss 2.3012  accuracy 0.112  12345 images/s
//
// After each epoch, prints a line for the whole epoch:
//
//   epoch  1/10  loss 2.3012  accuracy 0.112  test accuracy 0.1000  ...
//
// This line ends in images/s, the seconds of training, and the share of them
// that rank 0 waited for data, and in the number of skipped steps, if there are
// any. Not thread safe.
class TrainingProgress {
 public:
  // Borrows both. rewrite: whether `out` is a terminal, on which each line
  // replaces the previous one until the end of the epoch.
  TrainingProgress(Communicator& communicator, int64_t epochs,
                   std::ostream& out, bool rewrite);

  // Must be called after every step on every rank, because it sums over the
  // ranks, at steps that depend only on the number of steps. Errors: the
  // communicator's.
  absl::Status OnStep(const StepReport& report);

  // Must be called after every epoch. Prints on rank 0.
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

// The options of a run, which must match on all ranks. The caller has checked
// the flags; PrepareRun and LoadData check the files.
struct TrainRunOptions {
  std::string model = "lenet";            // As for CreateNetwork.
  std::string dataset = "fashion_mnist";  // As for LoadDataset.
  std::string data_dir;                   // As for LoadDataset.
  DatasetOptions data;                    // As for LoadDataset.
  std::string parallelism = "single";     // The name in reports.
  int64_t epochs = 10;                    // Including the epochs of `resume`.
  // Whether batch norm is over the batches of all ranks. A checkpoint does not
  // store this option, so a resumed run may change it.
  bool sync_bn = false;
  // kAuto: the algorithm of the checkpoint `resume`, if any.
  ConvolutionAlgorithm convolution = ConvolutionAlgorithm::kAuto;
  bool verbose = false;  // Prints how each layer is computed on a CPU.
  int threads_per_rank = 1;
  ComputeDevice device = ComputeDevice::kCpu;
  // The precision on GPUs. A resumed run may change it: a checkpoint holds
  // float32 parameters in each case, and no loss scale.
  ConvolutionPrecision precision = ConvolutionPrecision::kFloat32;
  // Why the CPU computes though a GPU was preferred; empty: it was not.
  std::string device_note;
  // This rank's number among those of its host, which take the host's GPUs in
  // turn. None: the number in the group.
  std::optional<int> local_rank;
  bool graphs = true;  // Whether a GPU gets steps as graphs (StepGraphs).
  // How long a rank on a GPU waits for another rank.
  absl::Duration timeout = GroupOptions().timeout;
  TrainerOptions trainer;
  std::string output_dir;  // Empty: write no files.
  std::string resume;      // Path of a checkpoint; empty: start anew.
  // The path of a safetensors file with the first weights, such as
  // torchvision's or timm's; empty: the weights are drawn from the seed.
  std::string weights;
};

// The files of output_dir, which rank 0 replaces after every epoch: a
// checkpoint (checkpoint.h), and the metrics of each epoch of this run. A run
// that resumes from a checkpoint in output_dir keeps the metrics of earlier
// epochs, unless they are of another model or seed.
inline constexpr char kCheckpointName[] = "weights.safetensors";
inline constexpr char kMetricsName[] = "metrics.json";

// Checks everything that needs neither a rank nor the data: that a checkpoint
// to resume from matches the options and leaves epochs to train, and that
// output_dir exists or can be created. Errors: one line that names the flag or
// the file.
absl::Status PrepareRun(const TrainRunOptions& options);

// Loads the data that the options name. Checks that the model fits the images
// and classes, and that the first weights fit the model. Errors: LoadDataset's;
// one line that names --model, or the file of weights and the tensor. Cost: if
// the first weights are in a file, one more read of it.
absl::StatusOr<DatasetParts> LoadData(const TrainRunOptions& options);

// Trains on the calling thread. On rank 0, prints progress on standard output,
// and at most one warning (Trainer::warning) on standard error. `data`: the
// result of LoadData. Resuming after epoch k, with the same options as the
// earlier run, gives the same bits as a run without the interruption.
//
// The ranks first compare their numbers of images, labels and file names
// (CheckSameData). All ranks compute convolutions alike: direct if some rank
// has no Winograd. With sync_bn, batch norm's messages have a group of their
// own, because the gradients are summed at the same time.
//
// Errors: kInvalidArgument for an unknown model and for sync_bn with a model
// that has no batch norm; kInvalidArgument, naming a rank, for data that
// differs between ranks; kUnimplemented if the checkpoint of `resume` used
// Winograd and some rank lacks it; the trainer's, and those of reading and
// writing files. After an error the caller must leave the group, so that the
// other ranks fail too.
absl::Status RunTraining(Communicator& communicator, const DatasetParts& data,
                         const TrainRunOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_TRAIN_RUN_H_
