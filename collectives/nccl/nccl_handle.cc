#include "collectives/nccl/nccl_handle.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cuda_status.h"
#include "base/deadline.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/nccl/watchdog.h"

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

// How long Abort waits for a call of another thread to return by itself.
constexpr absl::Duration kCallsEnd = absl::Milliseconds(500);

// How long Abort waits for ncclCommAbort.
constexpr absl::Duration kAbortEnds = absl::Milliseconds(500);

// Returns NCCL's description of the last error of this thread, in one line.
std::string LastError(ncclComm_t comm) {
  const char* const text = ncclGetLastError(comm);
  std::string line(text == nullptr ? "" : text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

constexpr int kAllowsSharing = 23000;  // NCCL 2.30.0.

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

absl::Status CheckProcesses(std::span<const RankLocation> ranks,
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

absl::StatusOr<GpuSharing> PlanGpuSharing(std::span<const RankLocation> ranks,
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

ncclResult_t IssueNative(const Collective& call, int rank, ncclComm_t comm,
                         cudaStream_t stream) {
  const void* const in = call.input.data;
  void* const out = call.output.data;
  const size_t count = static_cast<size_t>(call.input.count);
  const size_t bytes = static_cast<size_t>(call.input.size_bytes());
  const ncclDataType_t type = NcclType(call.input.type);
  const ncclRedOp_t op = NcclOp(call.op);
  switch (call.operation) {
    case Operation::kAllReduce:
      return ncclAllReduce(in, out, count, type, op, comm, stream);
    case Operation::kReduce:
      return ncclReduce(in, rank == call.peer ? out : nullptr, count, type, op,
                        call.peer, comm, stream);
    case Operation::kReduceScatter:
      return ncclReduceScatter(in, out, static_cast<size_t>(call.output.count),
                               type, op, comm, stream);
    case Operation::kAllGather:
      return ncclAllGather(in, out, bytes, ncclUint8, comm, stream);
    case Operation::kBroadcast:
      return ncclBroadcast(in, out, bytes, ncclUint8, call.peer, comm, stream);
    default:
      return ncclInvalidUsage;
  }
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
  LOCKSTEP_RETURN_IF_ERROR(
      ShareStatus(control, SetNcclEnvironment(sharing.environment)));
  return sharing.shared;
}

absl::Status ExchangeSetup(Communicator& control, NcclSetup& setup) {
  absl::Status own;
  if (control.rank() == 0) {
    own = NcclStatus(ncclGetUniqueId(&setup.id), "ncclGetUniqueId");
  }
  LOCKSTEP_RETURN_IF_ERROR(ShareStatus(control, own));
  return control.Broadcast(std::as_writable_bytes(std::span(&setup, 1)), 0);
}

absl::Status RunWithin(absl::Duration timeout,
                       std::function<absl::Status()> fn) {
  struct Call {
    std::mutex mutex;
    std::condition_variable ended;
    std::optional<absl::Status> status;
  };
  const auto call = std::make_shared<Call>();
  std::thread thread([call, fn = std::move(fn)] {
    absl::Status status = fn();
    const std::lock_guard lock(call->mutex);
    call->status = std::move(status);
    call->ended.notify_one();
  });
  std::unique_lock lock(call->mutex);
  const bool in_time = call->ended.wait_for(
      lock, absl::ToChronoMilliseconds(std::min(timeout, absl::Hours(1000))),
      [&] { return call->status.has_value(); });
  if (!in_time) {
    thread.detach();
    return absl::DeadlineExceededError(
        absl::StrCat("not finished after ", absl::FormatDuration(timeout)));
  }
  absl::Status status = *std::move(call->status);
  lock.unlock();
  thread.join();
  return status;
}

absl::Status NcclHandle::Init(const ncclUniqueId& id, int rank, int world_size,
                              int device, absl::Duration timeout) {
  const auto made = std::make_shared<std::atomic<ncclComm_t>>(nullptr);
  LOCKSTEP_RETURN_IF_ERROR(RunWithin(timeout, [=]() mutable -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(cudaSetDevice(device), "cudaSetDevice"));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    ncclComm_t comm = nullptr;
    const ncclResult_t result =
        ncclCommInitRankConfig(&comm, world_size, id, rank, &config);
    LOCKSTEP_RETURN_IF_ERROR(NcclStatus(
        result,
        absl::StrCat("ncclCommInitRankConfig (", LastError(nullptr), ")")));
    *made = comm;
    return absl::OkStatus();
  }));
  comm_ = made->load();
  return absl::OkStatus();
}

absl::Status NcclHandle::Group(absl::FunctionRef<ncclResult_t()> issue) {
  const std::lock_guard lock(calls_);
  if (comm_ == nullptr) return absl::AbortedError("NCCL was aborted");
  LOCKSTEP_RETURN_IF_ERROR(NcclStatus(ncclGroupStart(), "ncclGroupStart"));
  const ncclResult_t issued = issue();
  const ncclResult_t ended = ncclGroupEnd();
  LOCKSTEP_RETURN_IF_ERROR(NcclStatus(issued, "a call of NCCL"));
  return NcclStatus(ended, "ncclGroupEnd");
}

absl::Status NcclHandle::Call(
    absl::FunctionRef<ncclResult_t(ncclComm_t)> call) {
  const std::lock_guard lock(calls_);
  if (comm_ == nullptr) return absl::AbortedError("NCCL was aborted");
  return NcclStatus(call(comm_), "a call of NCCL");
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
                                  int from, cudaStream_t stream) {
  return Group([&] {
    const ncclResult_t result = Send(sent, to, stream);
    return result == ncclSuccess ? Receive(received, from, stream) : result;
  });
}

absl::Status NcclHandle::Health() const {
  const ncclComm_t comm = comm_;
  if (comm == nullptr) return absl::OkStatus();
  ncclResult_t state = ncclSuccess;
  LOCKSTEP_RETURN_IF_ERROR(
      NcclStatus(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError"));
  // ncclInProgress means that a call waits for another rank.
  if (state == ncclSuccess || state == ncclInProgress) return absl::OkStatus();
  return NcclStatus(state, absl::StrCat("NCCL (", LastError(comm), ")"));
}

void NcclHandle::Abort() {
  // A call in the other thread mostly returns soon. If it waits for a rank that
  // never arrives, only aborting ends it.
  std::unique_lock lock(calls_, std::defer_lock);
  const Deadline deadline(kCallsEnd);
  while (!lock.try_lock() && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const ncclComm_t comm = comm_.exchange(nullptr);
  if (lock.owns_lock()) lock.unlock();
  if (comm == nullptr) return;
  // ncclCommAbort ends kernels at once. It then waits for graphs that captured
  // its calls, which the caller may have to destroy, so the wait is limited.
  static_cast<void>(RunWithin(kAbortEnds, [comm] {
    return NcclStatus(ncclCommAbort(comm), "ncclCommAbort");
  }));
}

void NcclHandle::Destroy(absl::Duration timeout) {
  const ncclComm_t comm = comm_.exchange(nullptr);
  if (comm == nullptr) return;
  static_cast<void>(RunWithin(timeout, [comm]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(
        NcclStatus(ncclCommFinalize(comm), "ncclCommFinalize"));
    return NcclStatus(ncclCommDestroy(comm), "ncclCommDestroy");
  }));
}

}  // namespace lockstep
