// Training state in a file: what a run needs to go on as if it had not stopped.
#ifndef LOCKSTEP_MODELS_TRAIN_CHECKPOINT_H_
#define LOCKSTEP_MODELS_TRAIN_CHECKPOINT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/model.h"

namespace lockstep {

// What a checkpoint says besides parameters and buffers. SGD without momentum
// has no state of its own, nor has SyncBatchNorm beyond the buffers that batch
// norm has anyway, and the order of samples is a function of seed and epoch.
struct CheckpointInfo {
  std::string model;
  uint64_t seed = 0;
  int64_t epochs = 0;  // Finished; the next one is number `epochs`, from 0.

  friend bool operator==(const CheckpointInfo&,
                         const CheckpointInfo&) = default;
};

// A safetensors file: each parameter and buffer under its own name
// (model_tensors.h), the info as metadata. Errors: those of WriteSafetensors.
absl::Status SaveCheckpoint(const std::string& path, const CheckpointInfo& info,
                            const Parameters& parameters,
                            const Buffers& buffers);

// Reads the info alone. Errors: those of ReadSafetensors; kInvalidArgument,
// with the path, if the file is no checkpoint.
absl::StatusOr<CheckpointInfo> ReadCheckpointInfo(const std::string& path);

// Reads the values of parameters and buffers too. Errors: as above, and
// LoadTensors'.
absl::StatusOr<CheckpointInfo> LoadCheckpoint(const std::string& path,
                                              Parameters& parameters,
                                              Buffers& buffers);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_CHECKPOINT_H_
