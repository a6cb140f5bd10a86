// Support for GPUs, in programs that link it (device.h).
#include <cuda_runtime.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "models/cuda/cuda_model.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/train/device.h"

namespace lockstep {
namespace {

absl::Status Check() { return DeviceOfRank(/*local_rank=*/0).status(); }

absl::StatusOr<std::unique_ptr<Model>> Create(Network network, int rank) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int device, DeviceOfRank(rank));
  return CreateCudaModel(std::move(network), device);
}

[[maybe_unused]] const bool kRegistered =
    RegisterGpuSupport({.check = Check, .create = Create});

}  // namespace
}  // namespace lockstep
