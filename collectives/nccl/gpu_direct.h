// Memory that all ranks of a group reach, and reductions straight from it.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_GPU_DIRECT_H_
#define LOCKSTEP_COLLECTIVES_NCCL_GPU_DIRECT_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/collective.h"
#include "collectives/nccl/nccl_handle.h"

namespace lockstep {

// Each rank reduces its segment, reading the other ranks' memory in the order
// of additions of the ring (algorithms/schedule.h), and writes it to all of
// theirs: three kernels, of which the first and the last are barriers, and the
// ring's bits. Memory is registered with NCCL as windows, which ranks can do
// whose GPUs reach each other's memory, over NVLink mostly. Not thread safe.
class GpuDirect {
 public:
  // Blocks until all ranks have called it. Null where ranks cannot reach each
  // other's memory, or NCCL is older than 2.28. handle: initialised. `stream`
  // must outlive this. Errors: NCCL's, CudaStatus's;
  // kDeadlineExceeded after `timeout`.
  static absl::StatusOr<std::unique_ptr<GpuDirect>> Create(
      int rank, int world_size, std::shared_ptr<NcclHandle> handle,
      cudaStream_t stream, absl::Duration timeout);

  virtual ~GpuDirect() = default;

  // More than 0 bytes, not set to anything, for Register. Errors: NCCL's.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> Allocate(
      int64_t bytes) = 0;

  // Makes a window of memory from Allocate, of as many bytes on every rank.
  // Blocks until all ranks have called it: so let them agree first. The memory
  // may outlive this. Errors: NCCL's.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> Register(
      std::shared_ptr<std::byte> memory, int64_t bytes) = 0;

  // 0 unless the call is a reduction whose data lies in such memory; else a
  // number that says where. Reduce takes those for which it is the same on all
  // ranks.
  virtual uint64_t PlaceOf(const Collective& call) const = 0;

  // Only enqueues. Errors: CudaStatus's.
  virtual absl::Status Reduce(const Collective& call) = 0;

  // Lets kernels that wait for other ranks go on; from any thread.
  virtual void Abort() = 0;

  // Takes back what NCCL has registered; before the communicator ends. Nothing
  // but the end may follow.
  virtual void Close() = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_GPU_DIRECT_H_
