// Support for GPUs, in programs that link it (device.h).
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "models/cuda/cuda_model.h"
#include "models/cuda/precision.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/train/device.h"
#include "models/train/gpu_rank_steps.h"
#include "models/train/rank_steps.h"

namespace lockstep {
namespace {

absl::StatusOr<int> Count() {
  LOCKSTEP_RETURN_IF_ERROR(DeviceOfRank(/*local_rank=*/0).status());
  int count = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
  return count;
}

absl::StatusOr<GpuDescription> Describe(int local_rank) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int device, DeviceOfRank(local_rank));
  cudaDeviceProp properties;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties"));
  GpuDescription gpu = {.name = properties.name};
  static_assert(sizeof(properties.uuid) == sizeof(gpu.uuid));
  std::memcpy(gpu.uuid.data(), &properties.uuid, sizeof(gpu.uuid));
  return gpu;
}

absl::StatusOr<std::unique_ptr<Model>> Create(Network network, uint64_t seed,
                                              int local_rank,
                                              ConvolutionPrecision precision) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int device, DeviceOfRank(local_rank));
  return CreateCudaModel(std::move(network), device,
                         {.seed = seed, .precision = precision});
}

absl::StatusOr<std::unique_ptr<RankSteps>> CreateSteps(
    Communicator& group, int local_rank, const Network& network,
    const GpuStepsOptions& options, std::string& shared) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int device, DeviceOfRank(local_rank));
  return GpuRankSteps::Create(group, device, network, options, shared);
}

[[maybe_unused]] const bool kRegistered =
    RegisterGpuSupport({.count = Count,
                        .describe = Describe,
                        .create = Create,
                        .create_steps = CreateSteps});

}  // namespace
}  // namespace lockstep
