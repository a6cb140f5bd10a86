// A non-blocking NCCL communicator.
#include "collectives/nccl/nccl_handle.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/buffer.h"
#include "collectives/nccl/nccl_status.h"
#include "collectives/nccl/peers.h"

namespace lockstep {
namespace {

// What NCCL says about the last error of this thread, in one line.
std::string LastError(ncclComm_t comm) {
  const char* const text = ncclGetLastError(comm);
  std::string line(text == nullptr ? "" : text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

bool Started(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

}  // namespace

absl::Status NcclHandle::Init(const ncclUniqueId& id, int rank, int world_size,
                              Progress& progress) {
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
                               Progress& progress) {
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
