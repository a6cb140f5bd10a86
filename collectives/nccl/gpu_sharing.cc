#include "collectives/nccl/gpu_sharing.h"

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
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cuda_status.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/nccl/nccl_handle.h"
#include "collectives/nccl/watchdog.h"

namespace lockstep {
namespace {

struct Introduction {
  RankLocation place;
  int32_t nccl_version = 0;  // 0 if the rank could not introduce itself.
};

// Returns a number that is the same for every process of a host, until it
// reboots.
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
  own.place.gpu_bus = static_cast<uint64_t>(properties.pciDomainID) << 32 |
                      static_cast<uint64_t>(properties.pciBusID) << 16 |
                      static_cast<uint64_t>(properties.pciDeviceID);
  int mode = cudaComputeModeDefault;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, device),
                 "cudaDeviceGetAttribute"));
  own.place.exclusive = mode != cudaComputeModeDefault;
  own.place.host = HostIdentity();
  own.place.process = ProcessNumber();
  int version = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      NcclStatus(ncclGetVersion(&version), "ncclGetVersion"));
  own.nccl_version = version;
  return absl::OkStatus();
}

constexpr int kAllowsSharing = 23000;  // NCCL 2.30.0.

constexpr char kLaunchOrder[] = "NCCL_LAUNCH_ORDER_IMPLICIT";

// The maximum number of thread blocks in one rank's NCCL kernels. The blocks of
// all ranks must run at the same time, since they wait for each other.
constexpr int kMaxCtas = 32;

bool OnOneGpu(const RankLocation& a, const RankLocation& b) {
  return a.gpu_uuid == b.gpu_uuid ||
         (a.host == b.host && a.gpu_bus == b.gpu_bus);
}

bool InOneProcess(const RankLocation& a, const RankLocation& b) {
  return a.host == b.host && a.process == b.process;
}

// Returns the number of ranks on the GPU that has the most.
int MostRanksOnOneGpu(std::span<const RankLocation> ranks) {
  int most = 0;
  for (const RankLocation& a : ranks) {
    const auto on_it = std::ranges::count_if(
        ranks, [&](const RankLocation& b) { return OnOneGpu(a, b); });
    most = std::max(most, static_cast<int>(on_it));
  }
  return most;
}

absl::Status CheckComputeModes(std::span<const RankLocation> ranks) {
  for (size_t b = 0; b < ranks.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      // The mode holds for each MIG slice by itself.
      if (!ranks[a].exclusive || ranks[a].gpu_uuid != ranks[b].gpu_uuid ||
          InOneProcess(ranks[a], ranks[b])) {
        continue;
      }
      return absl::FailedPreconditionError(absl::StrCat(
          "ranks ", a, " and ", b,
          " are processes that share a GPU, whose compute mode allows one "
          "process: nvidia-smi --compute-mode=DEFAULT allows several"));
    }
  }
  return absl::OkStatus();
}

// Returns two ranks that share a GPU and a process, if there are any.
std::optional<std::pair<size_t, size_t>> FindSharingThreads(
    std::span<const RankLocation> ranks) {
  for (size_t b = 0; b < ranks.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (OnOneGpu(ranks[a], ranks[b]) && InOneProcess(ranks[a], ranks[b])) {
        return std::pair(a, b);
      }
    }
  }
  return std::nullopt;
}

absl::Status CheckProcesses(std::span<const RankLocation> ranks,
                            int nccl_version) {
  const auto threads = FindSharingThreads(ranks);
  if (!threads.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "ranks ", threads->first, " and ", threads->second,
      " are threads of one process that share a GPU: NCCL before 2.30 (here ",
      nccl_version / 10000, ".", nccl_version / 100 % 100,
      ") needs a process for each, since NCCL_HOSTID holds for a process"));
}

// Returns PlanGpuSharing's settings without the order of launches.
absl::StatusOr<GpuSharing> PlanSharedGpus(std::span<const RankLocation> ranks,
                                          int rank, int nccl_version) {
  const int most = MostRanksOnOneGpu(ranks);
  if (most <= 1) return GpuSharing{};
  LOCKSTEP_RETURN_IF_ERROR(CheckComputeModes(ranks));
  if (nccl_version >= kAllowsSharing) {
    return GpuSharing{
        true,
        {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
         {"NCCL_NVLS_ENABLE", "0"},
         {"NCCL_MAX_CTAS", absl::StrCat(std::max(1, kMaxCtas / most))}}};
  }
  const absl::Status status = CheckProcesses(ranks, nccl_version);
  if (!status.ok()) return status;
  const RankLocation& own = ranks[rank];
  // Ranks that pose as different hosts must not use a network, or NVLink
  // between hosts: one GPU does not have either to itself.
  GpuSharing sharing = {
      true,
      {{"NCCL_HOSTID", absl::StrCat("lockstep-", absl::Hex(own.host), "-",
                                    absl::Hex(own.process))},
       {"NCCL_NET", "Socket"},
       {"NCCL_MNNVL_ENABLE", "0"}}};
  if (std::ranges::all_of(ranks, [&](const RankLocation& other) {
        return other.host == own.host;
      })) {
    sharing.environment["NCCL_SOCKET_IFNAME"] = "lo";
  }
  return sharing;
}

}  // namespace

absl::StatusOr<GpuSharing> PlanGpuSharing(std::span<const RankLocation> ranks,
                                          int rank, int nccl_version) {
  LOCKSTEP_ASSIGN_OR_RETURN(GpuSharing sharing,
                            PlanSharedGpus(ranks, rank, nccl_version));
  sharing.environment[kLaunchOrder] =
      FindSharingThreads(ranks).has_value() ? "0" : "1";
  return sharing;
}

absl::Status SetNcclEnvironment(
    const std::map<std::string, std::string>& variables) {
  static std::mutex& mutex = *new std::mutex;
  const std::lock_guard lock(mutex);
  for (const auto& [name, value] : variables) {
    if (setenv(name.c_str(), value.c_str(), /*overwrite=*/0) != 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for the environment variable ", name));
    }
  }
  return absl::OkStatus();
}

namespace {

// Returns an error if NCCL orders launches, of which threads that share a GPU
// would wait for each other.
absl::Status CheckLaunchOrder(const GpuSharing& sharing) {
  const auto wanted = sharing.environment.find(kLaunchOrder);
  const char* const value = std::getenv(kLaunchOrder);
  if (wanted == sharing.environment.end() || wanted->second == "1" ||
      value == nullptr || absl::string_view(value) == "0") {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "ranks are threads of one process that share a GPU, and ", kLaunchOrder,
      " is ", value,
      ", with which their kernels would wait for each other: set it to 0 "
      "before the process's first group"));
}

}  // namespace

absl::StatusOr<bool> ShareGpus(Communicator& control, int device,
                               const absl::Status& own) {
  // A rank that fails introduces itself too: its failure may come from sharing.
  Introduction introduction;
  const absl::Status introduced = Introduce(device, introduction);
  std::vector<Introduction> all(static_cast<size_t>(control.world_size()));
  LOCKSTEP_RETURN_IF_ERROR(
      control.AllGather(std::as_bytes(std::span(&introduction, 1)),
                        std::as_writable_bytes(std::span(all))));
  std::vector<RankLocation> places;
  int oldest = all.front().nccl_version;
  for (const Introduction& each : all) {
    places.push_back(each.place);
    oldest = std::min<int>(oldest, each.nccl_version);
  }
  GpuSharing sharing;
  if (oldest > 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(sharing,
                              PlanGpuSharing(places, control.rank(), oldest));
  }
  LOCKSTEP_RETURN_IF_ERROR(ShareStatus(control, own.ok() ? introduced : own));
  absl::Status set = SetNcclEnvironment(sharing.environment);
  set.Update(CheckLaunchOrder(sharing));
  LOCKSTEP_RETURN_IF_ERROR(ShareStatus(control, set));
  return sharing.shared;
}

}  // namespace lockstep
