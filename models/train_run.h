// One rank's whole training run: epochs, evaluation, progress, files.
#ifndef LOCKSTEP_MODELS_TRAIN_RUN_H_
#define LOCKSTEP_MODELS_TRAIN_RUN_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "models/data/fashion_mnist.h"
#include "models/trainer.h"

namespace lockstep {

// What a run is; the same on every rank, and checked.
struct TrainRunOptions {
  std::string model = "lenet";
  std::string dataset = "fashion_mnist";
  std::string data_dir = kFashionMnistDir;
  std::string parallelism = "single";  // As reports name it.
  int64_t epochs = 10;                 // In all, those of `resume` included.
  int threads_per_rank = 1;
  TrainerOptions trainer;
  std::string output_dir;  // Empty: write no files.
  std::string resume;      // Path of a checkpoint; empty: start anew.
};

// The files of output_dir, which rank 0 replaces after every epoch: a
// checkpoint, which holds the weights, and the numbers of each epoch of this
// run.
inline constexpr char kCheckpointName[] = "weights.safetensors";
inline constexpr char kMetricsName[] = "metrics.json";

// Checks what does not need a rank: that a checkpoint to resume from fits the
// options and leaves something to do, and that output_dir exists or can be
// created. Errors: one line that names the flag or the file.
absl::Status PrepareRun(const TrainRunOptions& options);

// Trains on the calling thread, printing progress on rank 0's standard output.
// Resuming after epoch k gives bit for bit what the run that was not
// interrupted gives. Errors: the trainer's, and those of reading and writing
// files; the caller then leaves the group, so that the other ranks learn of it.
absl::Status RunTraining(Communicator& communicator, const FashionMnist& data,
                         const TrainRunOptions& options);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_RUN_H_
