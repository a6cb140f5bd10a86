// Our own ring on ncclSend and ncclRecv, with a reduction kernel.
#ifndef LOCKSTEP_COLLECTIVES_NCCL_GPU_RING_H_
#define LOCKSTEP_COLLECTIVES_NCCL_GPU_RING_H_

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_graph.h"
#include "base/cuda_status.h"
#include "base/mutex.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/collective.h"
#include "collectives/nccl/nccl_handle.h"

namespace lockstep {

// Enqueues reductions in the order of additions of algorithms/schedule.h: the
// bits are those of RingReduce (algorithms/over_transport.h) on the CPU.
//
// Transfers are enqueued on the caller's stream, kernels on a stream of the
// ring. Each step of the first half moves a rank's segment in two chunks, one
// NCCL group each. A kernel reduces one chunk while the other is being
// transferred. In the second half, the second chunk follows one step behind the
// first, so that its last reduction overlaps with the first chunk's transfer.
// Each step is one group, and there is one group more. Segments that are too
// small to gain from that move in one chunk. Segments of more than two chunks
// take several rounds. Partial sums are sent as accumulators (reduce.h), except
// in the first step; complete sums are sent as elements.
//
// The second reduction of the same buffers captures the ring in a CUDA graph,
// and later ones launch that graph. A launch takes the host some microseconds,
// and needs no NCCL groups. The ring keeps the graphs that were used last.
//
// Create allocates everything that a call needs. Allocating memory or loading a
// kernel later would wait for the GPU, where another rank's kernels may wait
// for this rank's.
class GpuRing {
 public:
  // Creates the ring on the current device. handle: initialised; handle and
  // stream must outlive the ring. stream: not the legacy stream. chunk_bytes:
  // size of a chunk of accumulators, at least 16; the ring allocates four times
  // that.
  static absl::StatusOr<std::unique_ptr<GpuRing>> Create(int rank,
                                                         int world_size,
                                                         int64_t chunk_bytes,
                                                         NcclHandle& handle,
                                                         cudaStream_t stream);

  // Enqueues an AllReduce, Reduce or ReduceScatter and returns. The result is
  // ready once `stream` has reached the end of the call. The call must be valid
  // (collective.h), on device memory that is aligned to its elements;
  // world_size must be at least 2. capturing: whether the caller is capturing
  // `stream`, in which case the ring must not capture it. Errors:
  // NcclHandle::Group's, CudaStatus's.
  absl::Status Reduce(const Collective& call, bool capturing);

  // Returns whether kernels of the ring are pending.
  bool IsBusy() const {
    return cudaStreamQuery(reduce_stream_.get()) == cudaErrorNotReady;
  }

  // Destroys the graphs. Must be called before the communicator is destroyed,
  // which waits for them. Any thread may call this.
  void DestroyGraphs();

 private:
  // The number of chunks in flight at once.
  static constexpr int kWindow = 2;

  // The buffers of one chunk in flight.
  struct Slot {
    Event received;             // On stream_.
    Event reduced;              // On reduce_stream_.
    std::byte* memory[2] = {};  // Each is large enough for a chunk.
    int which = 0;              // The index of the memory that was filled last.
    std::byte* partial = nullptr;  // The result of the last step.
  };

  // One reduction.
  struct Job {
    ConstBuffer input;
    ReduceOp op;
    int as_rank;        // The rank whose all-reduce steps this rank takes.
    int64_t chunk = 0;  // The chunk's size in elements.
    // The destination of the segment that this rank completes; null: the slots.
    std::byte* completed = nullptr;
  };

  // Operation, reduction, root, type, count, input, output.
  using GraphKey = std::tuple<Operation, ReduceOp, int, DataType, int64_t,
                              const void*, const void*>;

  struct CachedGraph {
    Graph graph;  // Null after the first call.
    int64_t last_use = 0;
  };

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
  // Returns chunk `number` of the window that begins with chunk `first` of a
  // segment.
  Segment ChunkAt(const Job& job, int index, int64_t first, int number) const;
  // Returns the number of chunks in that window, which matches on all ranks.
  int ChunksInWindow(const Job& job, int64_t first) const;
  int64_t ChunkElements(const Job& job) const;

  absl::StatusOr<bool> LaunchGraph(const Collective& call);
  absl::Status Enqueue(const Collective& call);
  absl::Status AddUp(const Job& job, int64_t first);
  absl::Status ReduceChunk(const Job& job, int step, Segment chunk,
                           const Buffer& received, Slot& slot);
  absl::Status Circulate(const Job& job, Buffer output, int64_t first);
  ncclResult_t MoveComplete(const Job& job, Buffer output, int step,
                            int64_t first, int number) const;
  absl::Status GatherAtRoot(const Job& job, Buffer output, int root,
                            int64_t first);
  // Makes later work on stream_ wait for all kernels of the window.
  absl::Status WaitForKernels(const Job& job, int64_t first);

  const int rank_;
  const int world_size_;
  const int64_t chunk_bytes_;
  NcclHandle& handle_;
  const cudaStream_t stream_;
  DeviceMemory memory_;  // For the slots. Outlives the stream that uses it.
  Stream reduce_stream_;
  std::vector<Slot> slots_;
  Mutex graphs_mutex_;
  std::map<GraphKey, CachedGraph> graphs_ ABSL_GUARDED_BY(graphs_mutex_);
  // The uses of all graphs.
  int64_t uses_ ABSL_GUARDED_BY(graphs_mutex_) = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_NCCL_GPU_RING_H_
