// The owner of one NCCL communicator, which never blocks.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_NCCL_HANDLE_H_
#define LOCKSTEP_COLLECTIVES_NCCL_NCCL_HANDLE_H_

#include <cuda_runtime.h>
#include <nccl.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/buffer.h"
#include "collectives/nccl/peers.h"

namespace lockstep {

// A communicator with blocking = 0: no call of NCCL waits for other ranks, and
// all waits are Progress's. Not thread safe.
//
// Destroying it aborts it: ncclCommDestroy may wait for ranks that have died,
// or that leave later. So let calls end on all ranks before that.
class NcclHandle {
 public:
  NcclHandle() = default;
  ~NcclHandle() { Abort(); }
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  // Joins, on the current device, and waits for the others. Once.
  absl::Status Init(const ncclUniqueId& id, int rank, int world_size,
                    Progress& progress);

  // Calls `issue`, which calls NCCL with comm(), as one group, and returns once
  // it is on its streams. Errors: NCCL's, and Progress::WaitUntil's.
  absl::Status Group(absl::FunctionRef<ncclResult_t()> issue,
                     Progress& progress);

  // Within `issue`: bytes, so that any type and alignment will do. Nothing for
  // no bytes.
  ncclResult_t Send(ConstBuffer data, int peer, cudaStream_t stream) const;
  ncclResult_t Receive(Buffer data, int peer, cudaStream_t stream) const;

  // Whether NCCL has taken all that it was asked for. Error: what went wrong
  // since, also on its streams.
  absl::StatusOr<bool> Ready() const;

  // Ends what is on its streams; the memory is then free. No call may follow.
  void Abort();

  ncclComm_t comm() const { return comm_; }

 private:
  ncclComm_t comm_ = nullptr;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_NCCL_HANDLE_H_
