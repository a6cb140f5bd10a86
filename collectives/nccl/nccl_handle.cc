#include "collectives/nccl/nccl_handle.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

// How far a rank is with joining NCCL, and the most of these for a group.
enum Joining : int32_t { kJoined, kWaits, kFailed };

// How often the ranks tell each other how far they are.
constexpr std::chrono::milliseconds kMeetingInterval(10);

absl::StatusOr<ncclComm_t> InitComm(const ncclUniqueId& id, int rank, int size,
                                    int device) {
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device), "cudaSetDevice"));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  ncclComm_t comm = nullptr;
  const ncclResult_t result =
      ncclCommInitRankConfig(&comm, size, id, rank, &config);
  LOCKSTEP_RETURN_IF_ERROR(NcclStatus(
      result,
      absl::StrCat("ncclCommInitRankConfig (", LastError(nullptr), ")")));
  return comm;
}

// Waits until all ranks have joined or one has failed. Takes this rank's result
// from `made`, unless NCCL still waits when another rank fails. Errors: the
// control group's.
absl::Status AwaitInit(Communicator& control, absl::Duration timeout,
                       std::future<absl::StatusOr<ncclComm_t>>& made,
                       absl::StatusOr<ncclComm_t>& comm) {
  const Deadline deadline(timeout);
  while (true) {
    if (made.valid() &&
        made.wait_for(kMeetingInterval) == std::future_status::ready) {
      comm = made.get();  // `made` is no longer valid.
    } else if (made.valid() && deadline.passed()) {
      comm = absl::DeadlineExceededError(
          absl::StrCat("not finished after ", absl::FormatDuration(timeout)));
    }
    int32_t joining = !comm.ok() ? kFailed : made.valid() ? kWaits : kJoined;
    LOCKSTEP_RETURN_IF_ERROR(
        control.AllReduce(std::span(&joining, 1), ReduceOp::kMax));
    if (joining != kWaits) return absl::OkStatus();
  }
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

absl::Status ShareJoining(Communicator& control, const absl::Status& own) {
  if (own.ok()) return ShareStatus(control, own);
  return ShareStatus(
      control, absl::Status(own.code(),
                            absl::StrCat("rank ", control.rank(),
                                         ": joining NCCL: ", own.message())));
}

absl::Status NcclHandle::Init(Communicator& control, const ncclUniqueId& id,
                              int device, absl::Duration timeout) {
  std::promise<absl::StatusOr<ncclComm_t>> promise;
  std::future<absl::StatusOr<ncclComm_t>> made = promise.get_future();
  std::thread attempt([promise = std::move(promise), id, rank = control.rank(),
                       size = control.world_size(), device]() mutable {
    promise.set_value(InitComm(id, rank, size, device));
  });
  absl::StatusOr<ncclComm_t> comm = nullptr;
  const absl::Status met = AwaitInit(control, timeout, made, comm);
  if (made.valid()) {
    attempt.detach();
  } else {
    attempt.join();
  }
  if (comm.ok()) comm_ = *comm;
  LOCKSTEP_RETURN_IF_ERROR(met);
  return ShareJoining(control, comm.status());
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
