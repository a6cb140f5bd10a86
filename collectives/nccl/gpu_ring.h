// Our own ring on ncclSend and ncclRecv, with the reduction kernel.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_GPU_RING_H_
#define LOCKSTEP_COLLECTIVES_NCCL_GPU_RING_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/collective.h"
#include "collectives/nccl/nccl_handle.h"

namespace lockstep {

// Enqueues reductions in the order of additions of algorithms/schedule.h:
// the bits are those of RingReduce (algorithms/over_transport.h) on the CPU.
//
// Transfers go to the stream that the caller gives, kernels to one of the
// ring's own. Each step of the first half moves a rank's segment in two chunks,
// one group of NCCL each, so that a kernel reduces one while the other is on
// its way; segments that are too small to gain from that, in one. Each step of
// the second half is one group. Segments beyond two chunks take several rounds.
// Partial sums travel as accumulators (reduce.h), but on the first step, and
// complete ones as elements.
//
// The second reduction of the same buffers captures the ring in a CUDA graph,
// which further ones launch: that takes the host some microseconds, and NCCL
// no groups.
//
// Everything that a call needs is there from Create on, since allocating memory
// or loading a kernel waits for the GPU, where another rank's kernels may wait
// for this rank's.
class GpuRing {
 public:
  // Of the current device. handle: initialised; it must outlive the ring, as
  // must `stream`, which is not the legacy one. chunk_bytes: of accumulators,
  // at least 16; the ring allocates four times that.
  static absl::StatusOr<std::unique_ptr<GpuRing>> Create(int rank,
                                                         int world_size,
                                                         int64_t chunk_bytes,
                                                         NcclHandle& handle,
                                                         cudaStream_t stream);

  // An AllReduce, Reduce or ReduceScatter, which is valid (collective.h), of
  // device memory that is aligned to its elements; world_size is at least 2.
  // Only enqueues; all has been done when `stream` has come past. capturing:
  // whether somebody else captures `stream`, so that this must not. Errors:
  // NcclHandle::Group's, CudaStatus's.
  absl::Status Reduce(const Collective& call, bool capturing);

  // Whether kernels of the ring are under way.
  bool IsBusy() const {
    return cudaStreamQuery(reduce_stream_.get()) == cudaErrorNotReady;
  }

  // Destroys the graphs, before the communicator, which waits for that. From
  // any thread.
  void ForgetGraphs();

 private:
  // Chunks that are under way at once.
  static constexpr int kWindow = 2;

  // The place of one of them.
  struct Slot {
    Event received;                // On stream_.
    Event reduced;                 // On reduce_stream_.
    std::byte* memory[2] = {};     // Each has room for a chunk.
    int which = 0;                 // Of the two, the one that was filled last.
    std::byte* partial = nullptr;  // What the last step made.
  };

  // One reduction.
  struct Job {
    ConstBuffer input;
    ReduceOp op;
    int as_rank;        // Whose steps of an all-reduce this rank takes.
    int64_t chunk = 0;  // Elements.
    // Where the segment that this rank completes goes; null: to the slots.
    std::byte* completed = nullptr;
  };

  using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>,
                                CudaDeleter<&cudaGraphExecDestroy>>;
  // Operation, reduction, root, type, count, input, output.
  using GraphKey = std::tuple<Operation, ReduceOp, int, DataType, int64_t,
                              const void*, const void*>;

  GpuRing(int rank, int world_size, int64_t chunk_bytes, NcclHandle& handle,
          cudaStream_t stream)
      : rank_(rank),
        world_size_(world_size),
        chunk_bytes_(chunk_bytes),
        handle_(handle),
        stream_(stream) {}

  int next() const { return (rank_ + 1) % world_size_; }
  int previous() const { return (rank_ + world_size_ - 1) % world_size_; }
  Segment SegmentAt(const Job& job, int index) const;
  // `number` of the window that begins with chunk `first`, of a segment.
  Segment ChunkAt(const Job& job, int index, int64_t first, int number) const;
  // All chunks of the window.
  Segment WindowAt(const Job& job, int index, int64_t first) const;
  int64_t ChunkElements(const Job& job) const;

  absl::StatusOr<bool> LaunchGraph(const Collective& call);
  absl::StatusOr<Graph> Capture(const Collective& call);
  absl::Status Enqueue(const Collective& call);
  absl::Status AddUp(const Job& job, int64_t first);
  absl::Status ReduceChunk(const Job& job, int step, Segment chunk,
                           const Buffer& received, Slot& slot);
  absl::Status Circulate(const Job& job, Buffer output, int64_t first);
  absl::Status GatherAtRoot(const Job& job, Buffer output, int root,
                            int64_t first);
  absl::Status WaitForKernels();

  const int rank_;
  const int world_size_;
  const int64_t chunk_bytes_;
  NcclHandle& handle_;
  const cudaStream_t stream_;
  DeviceMemory memory_;  // The slots'. Outlives the stream that uses it.
  Stream reduce_stream_;
  Event joined_;
  std::vector<Slot> slots_;
  std::mutex graphs_mutex_;
  std::map<GraphKey, Graph> graphs_;  // Null after the first call.
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_GPU_RING_H_
