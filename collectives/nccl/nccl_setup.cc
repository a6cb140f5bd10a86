// Before an NCCL communicator is made.
#include "collectives/nccl/nccl_setup.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/status_macros.h"
#include "collectives/nccl/gpu_sharing.h"
#include "collectives/nccl/nccl_status.h"
#include "collectives/nccl/peers.h"
#include "collectives/rendezvous/process_identity.h"

namespace lockstep {
namespace {

struct Introduction {
  RankPlace place;
  int32_t nccl_version = 0;
};

// The same for every process of a host, for as long as it is up.
uint64_t HostIdentity() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return std::hash<std::string>()(absl::StrCat(name, " ", boot));
}

uint64_t ProcessNumber() {
  const ProcessIdentity process = ThisProcess();
  return process.start_ticks << 32 ^ static_cast<uint64_t>(process.pid);
}

absl::Status Introduce(int device, Introduction& own) {
  cudaDeviceProp properties;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, device),
                 absl::StrCat("cudaGetDeviceProperties of device ", device)));
  static_assert(sizeof(properties.uuid) == sizeof(own.place.gpu_uuid));
  std::memcpy(own.place.gpu_uuid.data(), &properties.uuid,
              sizeof(properties.uuid));
  own.place.host = HostIdentity();
  own.place.process = ProcessNumber();
  int version = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      NcclStatus(ncclGetVersion(&version), "ncclGetVersion"));
  own.nccl_version = version;
  return absl::OkStatus();
}

absl::Status SetEnvironment(const GpuSharing& sharing) {
  // Ranks may be threads of one process.
  static std::mutex& mutex = *new std::mutex;
  const std::lock_guard lock(mutex);
  for (const auto& [name, value] : sharing.environment) {
    if (setenv(name.c_str(), value.c_str(), /*overwrite=*/0) != 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for the environment variable ", name));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> ShareGpus(Peers& peers, int device,
                               const absl::Status& own) {
  Introduction introduction;
  absl::Status status = own.ok() ? Introduce(device, introduction) : own;
  LOCKSTEP_RETURN_IF_ERROR(peers.Share(true, status).status());
  std::vector<Introduction> all(peers.world_size());
  LOCKSTEP_RETURN_IF_ERROR(
      peers.control().AllGather(std::as_bytes(std::span(&introduction, 1)),
                                std::as_writable_bytes(std::span(all))));
  std::vector<RankPlace> places;
  int oldest = all.front().nccl_version;
  for (const Introduction& each : all) {
    places.push_back(each.place);
    oldest = std::min<int>(oldest, each.nccl_version);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const GpuSharing sharing,
                            PlanGpuSharing(places, peers.rank(), oldest));
  status = SetEnvironment(sharing);
  LOCKSTEP_RETURN_IF_ERROR(peers.Share(true, status).status());
  return sharing.shared;
}

absl::Status ExchangeSetup(Peers& peers, NcclSetup& setup) {
  absl::Status own;
  if (peers.rank() == 0) {
    own = NcclStatus(ncclGetUniqueId(&setup.id), "ncclGetUniqueId");
  }
  LOCKSTEP_RETURN_IF_ERROR(peers.Share(true, own).status());
  return peers.control().Broadcast(std::as_writable_bytes(std::span(&setup, 1)),
                                   0);
}

}  // namespace lockstep
