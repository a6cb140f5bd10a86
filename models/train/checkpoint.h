// Checkpoints: the file of weights, and the file of the optimizer's state
// beside it.
#ifndef LOCKSTEP_MODELS_TRAIN_CHECKPOINT_H_
#define LOCKSTEP_MODELS_TRAIN_CHECKPOINT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/cpu/algorithm.h"
#include "models/model.h"
#include "models/optimizer.h"

namespace lockstep {

// The metadata of a checkpoint, besides parameters, buffers and the optimizer's
// state. SyncBatchNorm has no state beyond the buffers of batch norm. The order
// of samples is a function of seed and epoch.
struct CheckpointInfo {
  std::string model;
  uint64_t seed = 0;
  int64_t epochs = 0;  // Finished; the next epoch's number, from 0.
  // The result of ResolveConvolution.
  ConvolutionAlgorithm convolution = ConvolutionAlgorithm::kDirect;
  OptimizerOptions optimizer = {};
  // The FNV-1a hash of the state's file, in 16 hexadecimal digits, which name
  // the file; empty if the optimizer has no state. SaveCheckpoint sets it.
  std::string state_hash = {};

  friend bool operator==(const CheckpointInfo&,
                         const CheckpointInfo&) = default;
};

// Writes a safetensors file with each parameter and buffer under its own name
// (models/io/safetensors.h), and the info as metadata. The file therefore loads
// strictly as a state_dict of PyTorch.
//
// If the optimizer has state (StateNames), the state is written first, to
// optimizer.HASH.safetensors in the same folder, and the info of the weights
// holds the hash. States in the folder that no checkpoint there names are
// removed last. Whenever the process dies, `path` and the state that it names
// are therefore a pair. The state's tensors are named parameter.array, as
// "W1.exp_avg"; "step" counts the steps.
//
// Errors: those of WriteSafetensors; kInvalidArgument for the state of another
// optimizer or network.
absl::Status SaveCheckpoint(const std::string& path, CheckpointInfo info,
                            const Parameters& parameters,
                            const Buffers& buffers,
                            const OptimizerState& state = {});

// Returns the info alone. Errors: as of LoadCheckpoint.
absl::StatusOr<CheckpointInfo> ReadInfo(const std::string& path);

// Returns the info, and reads the values of parameters and buffers. Errors:
// those of ReadSafetensors and LoadTensors; kInvalidArgument, with the path, if
// the file is not a checkpoint.
absl::StatusOr<CheckpointInfo> LoadCheckpoint(const std::string& path,
                                              Parameters& parameters,
                                              Buffers& buffers);

// Returns the state that belongs to the checkpoint at `path`, whose info is
// `info`. `parameters`: of the model; only names and shapes are read. Returns
// an empty state if the optimizer has none. Errors, with the path of the
// state's file: kDataLoss if its bytes are not those that the checkpoint was
// saved with; those of ReadFile, ParseSafetensors and LoadTensors.
absl::StatusOr<OptimizerState> LoadOptimizerState(const std::string& path,
                                                  const CheckpointInfo& info,
                                                  const Parameters& parameters);

// Checks that a run with these options may resume from the checkpoint at
// `path`. Error: kInvalidArgument, naming the flag of the first option that
// differs.
absl::Status CheckSameOptimizer(const std::string& path,
                                const CheckpointInfo& info,
                                const OptimizerOptions& options);

// Returns the fewest digits that read back as `value`.
std::string ShortestDigits(double value);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_CHECKPOINT_H_
