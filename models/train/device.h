// The device that computes a rank's model: the CPU, or a GPU in programs that
// link //models/train:gpu_device.
#ifndef LOCKSTEP_MODELS_TRAIN_DEVICE_H_
#define LOCKSTEP_MODELS_TRAIN_DEVICE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"
#include "models/cuda/precision.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/optimizer.h"
#include "models/train/rank_steps.h"

namespace lockstep {

enum class ComputeDevice { kCpu, kCuda };
const char* Name(ComputeDevice device);  // "cpu", "cuda".

// The settings of a rank's steps on a GPU.
struct GpuStepsOptions {
  uint64_t seed = 0;         // Of the first weights.
  int64_t bucket_bytes = 0;  // 0: GpuSteps::kBucketBytes.
  bool sync_bn = false;      // Batch norm over the batches of all ranks.
  ConvolutionPrecision precision = ConvolutionPrecision::kFloat32;
  OptimizerOptions optimizer = {};  // Accepted by CheckOptimizer.
  // The most samples in this rank's part of a batch; larger parts wait for the
  // GPU, to allocate.
  int64_t largest_shard = 0;
  // The samples of a whole global batch: steps on so many are launched as
  // graphs, after the first two. 0: no step is. Set by GraphSamples.
  int64_t graph_samples = 0;
  absl::Duration timeout = GroupOptions().timeout;  // Of NCCL's calls.
};

// The GPU of a rank.
struct GpuDescription {
  std::string name;  // "NVIDIA H100 80GB HBM3".
  // No two GPUs have the same. Each MIG slice of a GPU has its own.
  std::array<char, 16> uuid = {};
};

// Returns the graph_samples of a run with global batches of this size:
// batch_size, or 0 if the ranks' parts are not of one size of at least 2. Ranks
// with parts of one size capture their graphs in the same steps.
constexpr int64_t GraphSamples(int64_t batch_size, int64_t world_size) {
  return batch_size % world_size == 0 && batch_size / world_size >= 2
             ? batch_size
             : 0;
}

// The functions of a program that links CUDA.
struct GpuSupport {
  // Returns the number of GPUs, at least 1; otherwise an error that says why
  // there is none.
  absl::StatusOr<int> (*count)();
  // Describes the GPU of a rank. The ranks of a host take its GPUs in turn.
  absl::StatusOr<GpuDescription> (*describe)(int local_rank);
  // Creates the model of a rank, with the first weights of `seed`.
  absl::StatusOr<std::unique_ptr<Model>> (*create)(
      Network network, uint64_t seed, int local_rank,
      ConvolutionPrecision precision);
  // Creates the steps of a rank (gpu_rank_steps.h). Every rank of the group
  // calls it.
  absl::StatusOr<std::unique_ptr<RankSteps>> (*create_steps)(
      Communicator& group, int local_rank, const Network& network,
      const GpuStepsOptions& options, std::string& shared);
};

// Makes the functions below use `support`. Called before main.
bool RegisterGpuSupport(const GpuSupport& support);

// Returns the device for --device: cpu, cuda, or auto (cuda if there is a GPU).
// If `auto` falls back to the CPU, `note` receives one line that says so and
// why. why_not: what keeps a GPU from doing what other flags ask for, such as
// "computes float32"; empty: nothing. If this program has no support for GPUs,
// but the program `<its name>_cuda` beside it has, cuda and auto start that
// program in its place with the same arguments; the function then does not
// return. Errors, in one line that begins with --device: an unknown name; cuda
// without a GPU or without support.
absl::StatusOr<ComputeDevice> ChooseDevice(absl::string_view text,
                                           absl::string_view why_not,
                                           char* const* argv,
                                           std::string& note);

// Returns the number of GPUs. Errors: as of GpuSupport::count; a program
// without support.
absl::StatusOr<int> GpuCount();

// Describes the GPU of a rank. Errors: as of GpuCount; those of CUDA.
absl::StatusOr<GpuDescription> DescribeGpu(int local_rank);

// Creates the model of a rank on its GPU. Errors: CreateCudaModel's.
absl::StatusOr<std::unique_ptr<Model>> CreateGpuModel(
    Network network, uint64_t seed, int local_rank,
    ConvolutionPrecision precision = ConvolutionPrecision::kFloat32);

// Creates the steps of a rank on its GPU, whose gradients NCCL sums. Every rank
// calls it. Borrows the group. Returns null, and why in `shared`, if ranks
// share a GPU and NCCL does not support that. Errors: GpuRankSteps::Create's.
absl::StatusOr<std::unique_ptr<RankSteps>> CreateGpuSteps(
    Communicator& group, int local_rank, const Network& network,
    const GpuStepsOptions& options, std::string& shared);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_DEVICE_H_
