// Memory that all ranks of a group can access, and reductions directly from it.
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

// Each rank reduces one segment: it reads the other ranks' memory in the ring's
// order of additions (algorithms/schedule.h). AllReduce writes the result to
// the memory of all ranks, ReduceScatter to the rank's own output. A call is
// one kernel, whose blocks meet those of the other ranks at its beginning and
// at its end. The bits are the ring's. Memory is registered with NCCL as
// windows; this needs GPUs that access each other's memory, mostly over NVLink.
// Not thread safe.
class GpuDirect {
 public:
  // Blocks until all ranks have called it. Returns null if ranks cannot access
  // each other's memory, or if the NCCL with which this was compiled, or the
  // one that is loaded, is older than 2.28. handle: initialised.
  // `stream` must outlive this object. Errors: NCCL's, CudaStatus's;
  // kDeadlineExceeded after `timeout`.
  static absl::StatusOr<std::unique_ptr<GpuDirect>> Create(
      int rank, int world_size, std::shared_ptr<NcclHandle> handle,
      cudaStream_t stream, absl::Duration timeout);

  virtual ~GpuDirect() = default;

  // Allocates uninitialised memory for Register. bytes: more than 0. Errors:
  // NCCL's.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> Allocate(
      int64_t bytes) = 0;

  // Makes a window of memory from Allocate. `bytes` must match on all ranks.
  // Blocks until all ranks have called it, so the ranks must agree on the call
  // first. The memory may outlive this object. Errors: NCCL's.
  virtual absl::StatusOr<std::shared_ptr<std::byte>> Register(
      std::shared_ptr<std::byte> memory, int64_t bytes) = 0;

  // Returns 0 unless the call is a reduction whose data lies in registered
  // memory; else a number that identifies the location. Reduce requires that
  // this number matches on all ranks.
  virtual uint64_t PlaceOf(const Collective& call) const = 0;

  // Enqueues the reduction, without waiting. Errors: CudaStatus's.
  virtual absl::Status Reduce(const Collective& call) = 0;

  // Ends kernels that wait for other ranks. Any thread may call this.
  virtual void Abort() = 0;

  // Deregisters all windows. Must be called before the communicator ends, and
  // only destruction may follow.
  virtual void Close() = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_GPU_DIRECT_H_
