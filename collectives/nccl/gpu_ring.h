// Our own ring on ncclSend and ncclRecv, with the reduction kernel.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_GPU_RING_H_
#define LOCKSTEP_COLLECTIVES_NCCL_GPU_RING_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/collective.h"
#include "collectives/nccl/nccl_handle.h"
#include "collectives/nccl/peers.h"

namespace lockstep {

// Enqueues reductions in the order of additions of algorithms/schedule.h:
// the bits are those of RingReduce (algorithms/over_transport.h) on the CPU.
//
// Segments travel in chunks. Transfers go to the stream that the caller gives,
// kernels to one of the ring's own, and events order the two chunk by chunk: a
// kernel reduces one chunk while the next is on its way. Partial sums travel as
// accumulators (reduce.h), but on the first step, and complete ones as
// elements. Uses 2 * kWindow chunks of device memory, from the first call on.
class GpuRing {
 public:
  // Chunks that are under way at once. Two overlap; four let ranks drift.
  static constexpr int kWindow = 4;

  // Of the current device. handle: initialised before the first call; it must
  // outlive the ring, as must `stream`. chunk_bytes: at least 16.
  static absl::StatusOr<GpuRing> Create(int rank, int world_size,
                                        int64_t chunk_bytes, NcclHandle& handle,
                                        cudaStream_t stream);

  // An AllReduce, Reduce or ReduceScatter, which is valid (collective.h), of
  // device memory that is aligned to its elements; world_size is at least 2.
  // Only enqueues; all has been done when `stream` has come past. Errors:
  // NcclHandle::Group's, CudaStatus's.
  absl::Status Reduce(const Collective& call, CallProgress& progress);

 private:
  // One of the chunks that are under way.
  struct Slot {
    Event received;  // On stream_: `incoming` is there.
    Event reduced;   // On reduce_stream_: `incoming` was read.
    std::byte* incoming = nullptr;
    std::byte* partial = nullptr;  // What was made of it.
  };

  // One reduction.
  struct Job {
    ConstBuffer input;
    ReduceOp op;
    int as_rank;    // Whose steps of an all-reduce this rank takes.
    int64_t chunk;  // Elements, whose accumulators fill a slot.
    // Where the segment that this rank completes goes; null: to the slots.
    std::byte* completed = nullptr;
  };

  GpuRing(int rank, int world_size, int64_t chunk_bytes, NcclHandle& handle,
          cudaStream_t stream)
      : rank_(rank),
        world_size_(world_size),
        chunk_bytes_(chunk_bytes),
        handle_(&handle),
        stream_(stream) {}

  int next() const { return (rank_ + 1) % world_size_; }
  int previous() const { return (rank_ + world_size_ - 1) % world_size_; }
  Segment SegmentAt(const Job& job, int index) const;
  // `number` of the window that begins with chunk `first`, of a segment.
  Segment ChunkAt(const Job& job, int index, int64_t first, int number) const;

  absl::Status Prepare();
  absl::Status AddUp(const Job& job, int64_t first, CallProgress& progress);
  absl::Status ReduceChunk(const Job& job, int step, Segment chunk,
                           const Slot& slot);
  absl::Status Circulate(const Job& job, Buffer output, int64_t first,
                         CallProgress& progress);
  absl::Status GatherAtRoot(const Job& job, Buffer output, int root,
                            int64_t first, CallProgress& progress);

  int rank_;
  int world_size_;
  int64_t chunk_bytes_;
  NcclHandle* handle_;
  cudaStream_t stream_;
  // The slots'; null before the first call. Outlives the stream that uses it.
  DeviceMemory memory_;
  Stream reduce_stream_;
  Event joined_;
  std::vector<Slot> slots_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_GPU_RING_H_
