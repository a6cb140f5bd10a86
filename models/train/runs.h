// What the commands do. train: one rank's whole run, with epochs, evaluation,
// progress, and files that hold what a run needs to go on as if it had not
// stopped. gradients: one step's loss, gradients and buffers, from tensors to
// tensors.
#ifndef LOCKSTEP_MODELS_TRAIN_RUNS_H_
#define LOCKSTEP_MODELS_TRAIN_RUNS_H_

#include <cstdint>
#include <new>
#include <optional>
#include <ostream>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "collectives/communicator.h"
#include "models/cpu/algorithm.h"
#include "models/data/load_dataset.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/train/trainer.h"

namespace lockstep {

// What `run` returns; kResourceExhausted if it found too little memory.
template <typename Run>
auto CatchBadAlloc(const Run& run) -> decltype(run()) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("not enough memory");
  } catch (const std::system_error& error) {  // No thread could be started.
    return absl::ResourceExhaustedError(
        absl::StrCat("not enough memory: ", error.what()));
  }
}

// Reads --convolution and --deterministic_across_machines. Errors: one line
// that names the flag, for an unknown name, Winograd that oneDNN lacks here,
// and two flags that contradict each other.
absl::StatusOr<ConvolutionAlgorithm> ChooseConvolution(absl::string_view text,
                                                       bool deterministic);

// Checks the flags that both commands have. Errors: kInvalidArgument, beginning
// with the flag, if there is no such model, if it has no batch norm that
// `sync_bn` could synchronise, or if a number is out of its range.
absl::Status CheckCommonFlags(absl::string_view model, bool sync_bn, int nproc,
                              int threads_per_rank, double timeout_s);

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

  // The share of train_time that this rank waited for data.
  double data_share() const {
    return absl::FDivDuration(times.data_wait, train_time);
  }
};

// Prints, on rank 0, a line about ten times an epoch but at most once a second,
//
//   epoch  1/10  step  120/235  loss 2.3012  accuracy 0.112  12345 images/s
//
// with what happened since the line before it, on all ranks together. After
// each epoch it prints a line for the whole epoch:
//
//   epoch  1/10  loss 2.3012  accuracy 0.112  test accuracy 0.1000  ...
//
// which ends in images/s, the seconds of training, and the share of them that
// rank 0 waited for data. Not thread safe.
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
  std::string model = "lenet";            // CreateNetwork's.
  std::string dataset = "fashion_mnist";  // LoadDataset's.
  std::string data_dir;                   // Likewise.
  DatasetOptions data;                    // Likewise.
  std::string parallelism = "single";     // As reports name it.
  int64_t epochs = 10;                    // In all, those of `resume` included.
  // Batch norm over the batches of all ranks. No part of a checkpoint: whether
  // to go on with it is each run's choice.
  bool sync_bn = false;
  // kAuto: as the checkpoint of `resume` had it.
  ConvolutionAlgorithm convolution = ConvolutionAlgorithm::kAuto;
  bool verbose = false;  // Prints how each layer is computed.
  int threads_per_rank = 1;
  TrainerOptions trainer;
  std::string output_dir;  // Empty: write no files.
  std::string resume;      // Path of a checkpoint; empty: start anew.
  // Path of a safetensors file with the first weights, such as torchvision's or
  // timm's; empty: drawn from the seed.
  std::string weights;
};

// What a checkpoint says besides parameters and buffers. SGD without momentum
// has no state of its own, nor has SyncBatchNorm beyond the buffers that batch
// norm has anyway, and the order of samples is a function of seed and epoch.
struct CheckpointInfo {
  std::string model;
  uint64_t seed = 0;
  int64_t epochs = 0;  // Finished; the next one is number `epochs`, from 0.
  // By ResolveConvolution.
  ConvolutionAlgorithm convolution = ConvolutionAlgorithm::kDirect;

  friend bool operator==(const CheckpointInfo&,
                         const CheckpointInfo&) = default;
};

// A safetensors file: each parameter and buffer under its own name
// (models/io/safetensors.h), the info as metadata. Errors: those of
// WriteSafetensors.
absl::Status SaveCheckpoint(const std::string& path, const CheckpointInfo& info,
                            const Parameters& parameters,
                            const Buffers& buffers);

// Reads the values of parameters and buffers too. Errors: those of
// ReadSafetensors and LoadTensors; kInvalidArgument, with the path, if the file
// is no checkpoint.
absl::StatusOr<CheckpointInfo> LoadCheckpoint(const std::string& path,
                                              Parameters& parameters,
                                              Buffers& buffers);

// The files of output_dir, which rank 0 replaces after every epoch: a
// checkpoint, which holds the weights, and the numbers of each epoch of this
// run. A run that resumes from a checkpoint in output_dir keeps the numbers of
// the epochs before, unless the file's are of another model or seed.
inline constexpr char kCheckpointName[] = "weights.safetensors";
inline constexpr char kMetricsName[] = "metrics.json";

// Checks what needs neither a rank nor the data: that a checkpoint to resume
// from fits the options and leaves something to do, and that output_dir exists
// or can be created. Errors: one line that names the flag or the file.
absl::Status PrepareRun(const TrainRunOptions& options);

// The data that the options name, once the model fits its images and classes,
// and the weights to begin with fit the model. Errors: LoadDataset's; one line
// that names --model, or the file of weights and the tensor. Cost: where there
// are weights, once more reading them.
absl::StatusOr<DatasetParts> LoadData(const TrainRunOptions& options);

// Trains on the calling thread, printing progress on rank 0's standard output,
// and on its standard error at most one warning (Trainer::warning).
// `data`: of LoadData. Resuming after epoch k, with the same options as the
// earlier run, gives bit for bit what a run without the interruption gives.
// The ranks first compare the numbers of their images, and the labels. All
// ranks compute convolutions alike: direct where some rank has no Winograd.
// With sync_bn, batch norm's messages have a group of their own, since the
// gradients are summed at the same time. Errors: kInvalidArgument for an
// unknown model, for sync_bn with a model that has no batch norm, and, naming a
// rank, for data that is not the same on every rank; kUnimplemented for
// convolutions that this rank lacks; the trainer's, and those of reading and
// writing files. The caller then leaves the group, so that the other ranks
// learn of it.
absl::Status RunTraining(Communicator& communicator, const DatasetParts& data,
                         const TrainRunOptions& options);

struct GradientsOptions {
  std::string model = "lenet";
  // The type of the computation: float32 by the CPU's model, or float64 by the
  // reference (models/reference), some 2 GFLOP/s on each rank.
  DataType dtype = DataType::kFloat32;
  // The sizes that the files must have; 0: any size.
  int64_t num_classes = 0;
  int64_t in_channels = 0;
  int64_t image_height = 0;
  int64_t image_width = 0;
  int world_size = 1;        // Ranks, which are threads of this process.
  int threads_per_rank = 1;  // In float32; float64 has one.
  ConvolutionAlgorithm convolution = ConvolutionAlgorithm::kAuto;  // float32's.
  bool sync_bn = false;  // Batch norm over the batches of all ranks.
  GroupOptions group = {};
};

// What a file holds, and what messages call it.
struct SafetensorsFile {
  std::string name;
  Safetensors content;
};

// Computes one step. weights: every parameter and buffer of the model
// (LoadTensors); for a step in float64, floats may be float64 too. batch:
// "images" float32 [n, c, h, w] of a size that the model takes, and "labels"
// int64 [n], n >= 1; its other tensors are ignored. Ranks take blocks of the
// batch as d2l's split_batch cuts it, which are empty on some if n is small.
//
// Returns the gradient of the mean loss over the whole batch for each parameter
// under its name, each buffer of rank 0 after the step under its name, and that
// "loss" [1]; floats have the type of `dtype`. The same arguments give the same
// bits.
//
// Errors: kInvalidArgument, with the file and the tensor, for what does not fit
// the above; beginning with --model, --num_classes, --in_channels or
// --image_size for an unknown model and for sizes that do not fit the files;
// for sync_bn with a model that has no batch norm; the model's.
absl::StatusOr<Safetensors> ComputeGradients(const GradientsOptions& options,
                                             const SafetensorsFile& weights,
                                             const SafetensorsFile& batch);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_RUNS_H_
