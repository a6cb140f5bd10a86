// One step's loss, gradients and buffers, from tensors to tensors.
#ifndef LOCKSTEP_MODELS_TRAIN_GRADIENTS_RUN_H_
#define LOCKSTEP_MODELS_TRAIN_GRADIENTS_RUN_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "models/io/safetensors.h"

namespace lockstep {

struct GradientsOptions {
  std::string model = "lenet";
  int world_size = 1;  // Ranks, which are threads of this process.
  int threads_per_rank = 1;
  bool sync_bn = false;  // Batch norm over the batches of all ranks.
  GroupOptions group = {};
};

// What a file holds, and what messages call it.
struct SafetensorsFile {
  std::string name;
  Safetensors content;
};

// Computes one step. weights: every parameter and buffer of the model
// (LoadTensors). batch: "images" float32 [n, c, h, w] of the model's size and
// "labels" int64 [n], n >= 1; its other tensors are ignored. Ranks take blocks
// of the batch as d2l's split_batch cuts it, which are empty on some if n is
// small.
//
// Returns the gradient of the mean loss over the whole batch for each parameter
// under its name, each buffer of rank 0 after the step under its name, and that
// "loss", float32 [1]. The same arguments give the same bits.
//
// Errors: kInvalidArgument, with the file and the tensor, for what does not fit
// the above, for an unknown model, and for sync_bn with a model that has no
// batch norm; the model's.
absl::StatusOr<Safetensors> ComputeGradients(const GradientsOptions& options,
                                             const SafetensorsFile& weights,
                                             const SafetensorsFile& batch);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_GRADIENTS_RUN_H_
