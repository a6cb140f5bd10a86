// The implementation of //models/train:gradients: one step's loss, gradients
// and buffers, from tensors to tensors.
#ifndef LOCKSTEP_MODELS_TRAIN_GRADIENTS_RUN_H_
#define LOCKSTEP_MODELS_TRAIN_GRADIENTS_RUN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "collectives/communicator.h"
#include "models/cpu/algorithm.h"
#include "models/io/safetensors.h"
#include "models/train/device.h"

namespace lockstep {

struct GradientsOptions {
  std::string model = "lenet";
  // The type of the computation: float32 by the CPU's model, or float64 by the
  // reference (models/reference), at some 2 GFLOP/s on each rank.
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
  ComputeDevice device = ComputeDevice::kCpu;  // float32's.
};

// The content of a file, and the name of the file in messages.
struct SafetensorsFile {
  std::string name;
  Safetensors content;
};

// Computes one step. weights: every parameter and buffer of the model
// (LoadTensors); for a step in float64, floats may be float64 too. batch:
// "images" float32 [n, c, h, w] of a size that the model takes, and "labels"
// int64 [n], n >= 1; its other tensors are ignored. Each rank takes a block of
// the batch as d2l's split_batch cuts it. If n is small, some blocks are empty.
//
// Returns three kinds of tensors: for each parameter, under its name, the
// gradient of the mean loss over the whole batch; each buffer of rank 0 after
// the step, under its name; and the mean loss as "loss" [1]. Floats have the
// type of `dtype`. The same arguments give the same bits.
//
// Errors: kInvalidArgument, with the file and the tensor, for files that do not
// match the description above; beginning with --model, --num_classes,
// --in_channels or --image_size for an unknown model and for sizes that do not
// match the files; for sync_bn with a model that has no batch norm; the
// model's.
absl::StatusOr<Safetensors> ComputeGradients(const GradientsOptions& options,
                                             const SafetensorsFile& weights,
                                             const SafetensorsFile& batch);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_GRADIENTS_RUN_H_
