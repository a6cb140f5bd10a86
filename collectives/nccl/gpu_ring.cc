#include "collectives/nccl/gpu_ring.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_graph.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/collective.h"
#include "collectives/nccl/nccl_handle.h"
#include "collectives/nccl/reduce.h"

namespace lockstep {
namespace {

// A chunk has the same offset from a multiple of this many elements as its part
// of the input, so that a kernel can access both in vectors (reduce.h).
constexpr int64_t kAlignedElements = 16;

// Space for that offset, for elements of any type; keeps the slots aligned.
constexpr int64_t kShiftBytes = 256;

// The segment size from which two chunks are faster than one. Two chunks cost
// one more NCCL kernel, some 7 us, which equals the time to reduce half of such
// a segment at 3 TB/s.
constexpr int64_t kWorthHalving = 16 << 20;

// The number of graphs above which the one that was used longest ago is
// destroyed, so that graphs of unused buffers do not accumulate. More than the
// tensors of a network: ResNet-50 has 161. With fewer graphs than tensors, each
// graph would be destroyed just before its next use.
constexpr size_t kMostGraphs = 512;

absl::Status Record(const Event& event, cudaStream_t stream) {
  return CudaStatus(cudaEventRecord(event.get(), stream), "cudaEventRecord");
}

absl::Status Wait(cudaStream_t stream, const Event& event) {
  return CudaStatus(cudaStreamWaitEvent(stream, event.get(), 0),
                    "cudaStreamWaitEvent");
}

// Returns the offset in a slot of a chunk that is reduced with `input`.
int64_t ShiftBytes(const ConstBuffer& input, DataType travels) {
  const auto address = reinterpret_cast<uintptr_t>(input.data);
  return static_cast<int64_t>(address /
                              static_cast<uintptr_t>(SizeOf(input.type))) %
         kAlignedElements * SizeOf(travels);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuRing>> GpuRing::Create(int rank,
                                                         int world_size,
                                                         int64_t chunk_bytes,
                                                         NcclHandle& handle,
                                                         cudaStream_t stream) {
  std::unique_ptr<GpuRing> ring(
      new GpuRing(rank, world_size, chunk_bytes, handle, stream));
  // Transfers wait for reductions, which are therefore as urgent. With ordinary
  // priority they would wait behind the kernels of backward.
  LOCKSTEP_ASSIGN_OR_RETURN(ring->reduce_stream_, MakeUrgentStream());
  const int64_t room =
      (chunk_bytes + kShiftBytes - 1) / kShiftBytes * kShiftBytes + kShiftBytes;
  LOCKSTEP_ASSIGN_OR_RETURN(ring->memory_,
                            AllocateDeviceMemory(2 * kWindow * room));
  std::byte* next = ring->memory_.get();
  for (int i = 0; i < kWindow; ++i) {
    Slot slot;
    LOCKSTEP_ASSIGN_OR_RETURN(slot.received, MakeEvent());
    LOCKSTEP_ASSIGN_OR_RETURN(slot.reduced, MakeEvent());
    for (std::byte*& memory : slot.memory) {
      memory = std::exchange(next, next + room);
    }
    ring->slots_.push_back(std::move(slot));
  }
  LOCKSTEP_RETURN_IF_ERROR(LoadReduceKernels());
  return ring;
}

absl::Status GpuRing::Reduce(const Collective& call, bool capturing) {
  if (capturing) return Enqueue(call);
  LOCKSTEP_ASSIGN_OR_RETURN(const bool launched, LaunchGraph(call));
  return launched ? absl::OkStatus() : Enqueue(call);
}

// Launches the graph of these buffers. Returns false on the first call of its
// buffers, which is made without a graph: it connects ranks that have not
// communicated before, which would make a capture long, and buffers that are
// used once are not worth a graph.
absl::StatusOr<bool> GpuRing::LaunchGraph(const Collective& call) {
  const MutexLock lock(graphs_mutex_);
  const auto [found, is_first] = graphs_.try_emplace(
      GraphKey(call.operation, call.op, call.peer, call.input.type,
               call.input.count, call.input.data, call.output.data));
  CachedGraph& cached = found->second;
  cached.last_use = ++uses_;
  if (is_first) {
    if (graphs_.size() > kMostGraphs) {
      graphs_.erase(std::ranges::min_element(
          graphs_, {}, [](const auto& each) { return each.second.last_use; }));
    }
    return false;
  }
  if (cached.graph == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        cached.graph, CaptureGraph(stream_, [&] { return Enqueue(call); }));
  }
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      cudaGraphLaunch(cached.graph.get(), stream_), "cudaGraphLaunch"));
  return true;
}

void GpuRing::DestroyGraphs() {
  const MutexLock lock(graphs_mutex_);
  graphs_.clear();
}

absl::Status GpuRing::Enqueue(const Collective& call) {
  const bool scatters = call.operation == Operation::kReduceScatter;
  const bool to_all = call.operation == Operation::kAllReduce;
  Job job = {call.input, call.op,
             scatters ? ReduceScatterRank(rank_, world_size_) : rank_};
  job.chunk = ChunkElements(job);
  if (scatters) {
    job.completed = call.output.bytes();
  } else if (to_all || rank_ == call.peer) {
    const Segment own = SegmentAt(job, CompletedSegment(rank_, world_size_));
    job.completed = call.output.Part(own.begin, 0).bytes();
  }
  // The longest segment, which is the first, determines the number of windows.
  const int64_t chunks = PieceCount(SegmentAt(job, 0).count, job.chunk);
  for (int64_t first = 0; first < chunks; first += kWindow) {
    LOCKSTEP_RETURN_IF_ERROR(AddUp(job, first));
    if (to_all) {
      LOCKSTEP_RETURN_IF_ERROR(Circulate(job, call.output, first));
      continue;
    }
    LOCKSTEP_RETURN_IF_ERROR(WaitForKernels(job, first));
    if (!scatters) {
      LOCKSTEP_RETURN_IF_ERROR(
          GatherAtRoot(job, call.output, call.peer, first));
    }
  }
  return absl::OkStatus();
}

absl::Status GpuRing::WaitForKernels(const Job& job, int64_t first) {
  // The last chunk's kernel is the last on its stream.
  const auto last = static_cast<size_t>(ChunksInWindow(job, first) - 1);
  return Wait(stream_, slots_[last].reduced);
}

// Returns the size of a chunk of the longest segment, which is the first, so
// that the size matches on all ranks.
int64_t GpuRing::ChunkElements(const Job& job) const {
  const DataType type = job.input.type;
  const int64_t longest = SegmentAt(job, 0).count;
  int64_t chunk = longest;
  if (longest * SizeOf(type) >= kWorthHalving) {
    chunk = (longest / 2 / kAlignedElements + 1) * kAlignedElements;
  }
  const int64_t room = chunk_bytes_ / SizeOf(AccumulatorOf(type, job.op));
  return std::clamp<int64_t>(chunk, 1, room);
}

Segment GpuRing::SegmentAt(const Job& job, int index) const {
  return SegmentOf(job.input.count, world_size_, index);
}

Segment GpuRing::ChunkAt(const Job& job, int index, int64_t first,
                         int number) const {
  return PieceOf(SegmentAt(job, index), job.chunk, first + number);
}

int GpuRing::ChunksInWindow(const Job& job, int64_t first) const {
  // The longest segment, which is the first, determines the number.
  int chunks = 0;
  while (chunks < kWindow && ChunkAt(job, 0, first, chunks).count > 0) ++chunks;
  return chunks;
}

// Runs the first half of the ring, after which this rank has one complete
// segment.
absl::Status GpuRing::AddUp(const Job& job, int64_t first) {
  const DataType accumulator = AccumulatorOf(job.input.type, job.op);
  const int chunks = ChunksInWindow(job, first);
  for (int step = 0; step < HalfRingSteps(world_size_); ++step) {
    const DataType travels = step == 0 ? job.input.type : accumulator;
    for (int i = 0; i < chunks; ++i) {
      Slot& slot = slots_[static_cast<size_t>(i)];
      const Segment out =
          ChunkAt(job, SentSegment(job.as_rank, world_size_, step), first, i);
      const Segment in = ChunkAt(
          job, ReceivedSegment(job.as_rank, world_size_, step), first, i);
      const ConstBuffer sent =
          step == 0 ? job.input.Part(out.begin, out.count)
                    : ConstBuffer(slot.partial, out.count, travels);
      // The kernel that computes `partial` must have ended.
      if (step > 0) LOCKSTEP_RETURN_IF_ERROR(Wait(stream_, slot.reduced));
      slot.which = 1 - slot.which;
      const Buffer received(
          slot.memory[slot.which] +
              ShiftBytes(job.input.Part(in.begin, in.count), travels),
          in.count, travels);
      LOCKSTEP_RETURN_IF_ERROR(
          handle_.Exchange(sent, next(), received, previous(), stream_));
      LOCKSTEP_RETURN_IF_ERROR(ReduceChunk(job, step, in, received, slot));
    }
  }
  return absl::OkStatus();
}

// Adds this rank's own input to a chunk that arrives in `step`.
absl::Status GpuRing::ReduceChunk(const Job& job, int step, Segment chunk,
                                  const Buffer& received, Slot& slot) {
  const DataType type = job.input.type;
  const bool is_last = step == HalfRingSteps(world_size_) - 1;
  const ConstBuffer own = job.input.Part(chunk.begin, chunk.count);
  Buffer result = received;
  result.type = is_last ? type : AccumulatorOf(type, job.op);
  if (is_last && job.completed != nullptr) {
    const Segment segment =
        SegmentAt(job, CompletedSegment(job.as_rank, world_size_));
    result.data = job.completed + (chunk.begin - segment.begin) * SizeOf(type);
  } else if (result.type != received.type) {
    // Uses the slot's other memory: its content has been sent already.
    slot.which = 1 - slot.which;
    result.data = slot.memory[slot.which] + ShiftBytes(own, result.type);
  }
  slot.partial = result.bytes();
  LOCKSTEP_RETURN_IF_ERROR(Record(slot.received, stream_));
  LOCKSTEP_RETURN_IF_ERROR(Wait(reduce_stream_.get(), slot.received));
  LOCKSTEP_RETURN_IF_ERROR(lockstep::Reduce(
      job.op, received, own, result,
      is_last && job.op == ReduceOp::kAverage ? world_size_ : 1,
      reduce_stream_.get()));
  return Record(slot.reduced, reduce_stream_.get());
}

// Runs the second half: the complete segments go round the ring, and each rank
// overwrites its output with them.
// Chunk i is i steps behind chunk 0, so that each chunk waits for its own
// kernels alone.
absl::Status GpuRing::Circulate(const Job& job, Buffer output, int64_t first) {
  const int steps = AllReduceSteps(world_size_) - HalfRingSteps(world_size_);
  const int chunks = ChunksInWindow(job, first);
  for (int group = 0; group < steps + chunks - 1; ++group) {
    if (group < chunks) {
      LOCKSTEP_RETURN_IF_ERROR(
          Wait(stream_, slots_[static_cast<size_t>(group)].reduced));
    }
    LOCKSTEP_RETURN_IF_ERROR(handle_.Group([&] {
      ncclResult_t result = ncclSuccess;
      for (int i = 0; i < chunks && result == ncclSuccess; ++i) {
        const int step = group - i;
        if (step < 0 || step >= steps) continue;
        result = MoveComplete(job, output, step, first, i);
      }
      return result;
    }));
  }
  return absl::OkStatus();
}

// Sends and receives a chunk of complete segments, within an NCCL group. step:
// counted from the start of the second half.
ncclResult_t GpuRing::MoveComplete(const Job& job, Buffer output, int step,
                                   int64_t first, int number) const {
  const int of_all = HalfRingSteps(world_size_) + step;
  const Segment out =
      ChunkAt(job, SentSegment(rank_, world_size_, of_all), first, number);
  const Segment in =
      ChunkAt(job, ReceivedSegment(rank_, world_size_, of_all), first, number);
  const ncclResult_t result =
      handle_.Send(output.Part(out.begin, out.count), next(), stream_);
  return result == ncclSuccess
             ? handle_.Receive(output.Part(in.begin, in.count), previous(),
                               stream_)
             : result;
}

// Sends the complete segments directly to the root.
absl::Status GpuRing::GatherAtRoot(const Job& job, Buffer output, int root,
                                   int64_t first) {
  const auto move = [&](int i, int peer) {
    const Segment chunk =
        ChunkAt(job, CompletedSegment(peer, world_size_), first, i);
    if (rank_ == root) {
      return handle_.Receive(output.Part(chunk.begin, chunk.count), peer,
                             stream_);
    }
    const Slot& slot = slots_[static_cast<size_t>(i)];
    return handle_.Send({slot.partial, chunk.count, job.input.type}, root,
                        stream_);
  };
  return handle_.Group([&] {
    for (int i = 0; i < kWindow; ++i) {
      for (int peer = 0; peer < world_size_; ++peer) {
        if (peer == root || (rank_ != root && peer != rank_)) continue;
        const ncclResult_t result = move(i, peer);
        if (result != ncclSuccess) return result;
      }
    }
    return ncclSuccess;
  });
}

}  // namespace lockstep
