#include "collectives/nccl/nccl_handle.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cuda_status.h"
#include "base/deadline.h"
#include "base/run_within.h"
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

}  // namespace

absl::Status NcclStatus(ncclResult_t result, absl::string_view what) {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::Status(Code(result), absl::StrCat(what, ": NCCL error ",
                                                 static_cast<int>(result), ": ",
                                                 ncclGetErrorString(result)));
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

absl::Status ExchangeSetup(Communicator& control, NcclSetup& setup) {
  absl::Status own;
  if (control.rank() == 0) {
    own = NcclStatus(ncclGetUniqueId(&setup.id), "ncclGetUniqueId");
  }
  LOCKSTEP_RETURN_IF_ERROR(ShareStatus(control, own));
  return control.Broadcast(std::as_writable_bytes(std::span(&setup, 1)), 0);
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
