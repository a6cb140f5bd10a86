#include "collectives/nccl/nccl_handle.h"

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
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cuda_status.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/nccl/peers.h"

namespace lockstep {
namespace {

absl::StatusCode Code(ncclResult_t result) {
  switch (result) {
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::StatusCode::kInvalidArgument;
    case ncclRemoteError:
    case ncclSystemError:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

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

// What NCCL says about the last error of this thread, in one line.
std::string LastError(ncclComm_t comm) {
  const char* const text = ncclGetLastError(comm);
  std::string line(text == nullptr ? "" : text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

constexpr int kAllowsSharing = 23000;  // NCCL 2.30.0.

// The thread blocks of one rank's kernels in NCCL at most. All ranks' must run
// at the same time, since they wait for each other.
constexpr int kMaxCtas = 32;

bool OnOneGpu(const RankPlace& a, const RankPlace& b) {
  return a.gpu_uuid == b.gpu_uuid;
}

bool InOneProcess(const RankPlace& a, const RankPlace& b) {
  return a.host == b.host && a.process == b.process;
}

// How many ranks the GPU with the most has.
int MostRanksOnOneGpu(std::span<const RankPlace> ranks) {
  int most = 0;
  for (const RankPlace& a : ranks) {
    const auto on_it = std::ranges::count_if(
        ranks, [&](const RankPlace& b) { return OnOneGpu(a, b); });
    most = std::max(most, static_cast<int>(on_it));
  }
  return most;
}

absl::Status CheckProcesses(std::span<const RankPlace> ranks,
                            int nccl_version) {
  for (size_t b = 0; b < ranks.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (!OnOneGpu(ranks[a], ranks[b]) || !InOneProcess(ranks[a], ranks[b])) {
        continue;
      }
      return absl::FailedPreconditionError(absl::StrCat(
          "ranks ", a, " and ", b,
          " are threads of one process that share a GPU: NCCL before 2.30 "
          "(here ",
          nccl_version / 10000, ".", nccl_version / 100 % 100,
          ") needs a process for each, since NCCL_HOSTID holds for a process"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status NcclStatus(ncclResult_t result, absl::string_view what) {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::Status(Code(result), absl::StrCat(what, ": NCCL error ",
                                                 static_cast<int>(result), ": ",
                                                 ncclGetErrorString(result)));
}

absl::StatusOr<GpuSharing> PlanGpuSharing(std::span<const RankPlace> ranks,
                                          int rank, int nccl_version) {
  const int most = MostRanksOnOneGpu(ranks);
  if (most <= 1) return GpuSharing{};
  if (nccl_version >= kAllowsSharing) {
    return GpuSharing{
        true,
        {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"},
         {"NCCL_NVLS_ENABLE", "0"},
         {"NCCL_MAX_CTAS", absl::StrCat(std::max(1, kMaxCtas / most))}}};
  }
  const absl::Status status = CheckProcesses(ranks, nccl_version);
  if (!status.ok()) return status;
  const RankPlace& own = ranks[rank];
  GpuSharing sharing = {
      true,
      {{"NCCL_HOSTID", absl::StrCat("lockstep-", absl::Hex(own.host), "-",
                                    absl::Hex(own.process))}}};
  if (std::ranges::all_of(ranks, [&](const RankPlace& other) {
        return other.host == own.host;
      })) {
    sharing.environment["NCCL_SOCKET_IFNAME"] = "lo";
  }
  return sharing;
}

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

absl::Status NcclHandle::Init(const ncclUniqueId& id, int rank, int world_size,
                              CallProgress& progress) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result =
      ncclCommInitRankConfig(&comm_, world_size, id, rank, &config);
  if (!Started(result)) {
    return NcclStatus(result, "ncclCommInitRankConfig");
  }
  return progress.WaitUntil([this] { return Ready(); });
}

absl::Status NcclHandle::Group(absl::FunctionRef<ncclResult_t()> issue,
                               CallProgress& progress) {
  LOCKSTEP_RETURN_IF_ERROR(NcclStatus(ncclGroupStart(), "ncclGroupStart"));
  const ncclResult_t issued = issue();
  const ncclResult_t ended = ncclGroupEnd();
  if (!Started(issued)) return NcclStatus(issued, "a call of NCCL");
  if (!Started(ended)) {
    return NcclStatus(ended, "ncclGroupEnd");
  }
  return progress.WaitUntil([this] { return Ready(); });
}

ncclResult_t NcclHandle::Send(ConstBuffer data, int peer,
                              cudaStream_t stream) const {
  if (data.count == 0) return ncclSuccess;
  return ncclSend(data.data, static_cast<size_t>(data.size_bytes()), ncclUint8,
                  peer, comm_, stream);
}

ncclResult_t NcclHandle::Receive(Buffer data, int peer,
                                 cudaStream_t stream) const {
  if (data.count == 0) return ncclSuccess;
  return ncclRecv(data.data, static_cast<size_t>(data.size_bytes()), ncclUint8,
                  peer, comm_, stream);
}

absl::Status NcclHandle::Exchange(ConstBuffer sent, int to, Buffer received,
                                  int from, cudaStream_t stream,
                                  CallProgress& progress) {
  return Group(
      [&] {
        const ncclResult_t result = Send(sent, to, stream);
        return Started(result) ? Receive(received, from, stream) : result;
      },
      progress);
}

absl::StatusOr<bool> NcclHandle::Ready() const {
  ncclResult_t state = ncclSuccess;
  LOCKSTEP_RETURN_IF_ERROR(NcclStatus(ncclCommGetAsyncError(comm_, &state),
                                      "ncclCommGetAsyncError"));
  if (state == ncclInProgress) return false;
  if (state != ncclSuccess) {
    return NcclStatus(state, absl::StrCat("NCCL (", LastError(comm_), ")"));
  }
  return true;
}

void NcclHandle::Abort() {
  if (comm_ == nullptr) return;
  // Nothing can be done about an error here.
  static_cast<void>(ncclCommAbort(std::exchange(comm_, nullptr)));
}

}  // namespace lockstep
