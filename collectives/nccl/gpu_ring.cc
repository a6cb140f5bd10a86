#include "collectives/nccl/gpu_ring.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/collective.h"
#include "collectives/nccl/nccl_handle.h"
#include "collectives/nccl/peers.h"
#include "collectives/nccl/reduce.h"

namespace lockstep {
namespace {

absl::Status Record(const Event& event, cudaStream_t stream) {
  return CudaStatus(cudaEventRecord(event.get(), stream), "cudaEventRecord");
}

absl::Status Wait(cudaStream_t stream, const Event& event) {
  return CudaStatus(cudaStreamWaitEvent(stream, event.get(), 0),
                    "cudaStreamWaitEvent");
}

}  // namespace

absl::StatusOr<GpuRing> GpuRing::Create(int rank, int world_size,
                                        int64_t chunk_bytes, NcclHandle& handle,
                                        cudaStream_t stream) {
  GpuRing ring(rank, world_size, chunk_bytes, handle, stream);
  LOCKSTEP_ASSIGN_OR_RETURN(ring.reduce_stream_, MakeStream());
  LOCKSTEP_ASSIGN_OR_RETURN(ring.joined_, MakeEvent());
  for (int i = 0; i < kWindow; ++i) {
    Slot slot;
    LOCKSTEP_ASSIGN_OR_RETURN(slot.received, MakeEvent());
    LOCKSTEP_ASSIGN_OR_RETURN(slot.reduced, MakeEvent());
    ring.slots_.push_back(std::move(slot));
  }
  return ring;
}

absl::Status GpuRing::Reduce(const Collective& call, CallProgress& progress) {
  const bool scatters = call.operation == Operation::kReduceScatter;
  const bool to_all = call.operation == Operation::kAllReduce;
  LOCKSTEP_RETURN_IF_ERROR(Prepare());
  Job job = {call.input, call.op,
             scatters ? ReduceScatterRank(rank_, world_size_) : rank_,
             chunk_bytes_ / SizeOf(AccumulatorOf(call.input.type, call.op))};
  if (scatters) {
    job.completed = call.output.bytes();
  } else if (to_all || rank_ == call.peer) {
    const Segment own = SegmentAt(job, CompletedSegment(rank_, world_size_));
    job.completed = call.output.Part(own.begin, 0).bytes();
  }
  // As many windows as the longest segment, which is the first, has.
  const int64_t chunks = PieceCount(SegmentAt(job, 0).count, job.chunk);
  for (int64_t first = 0; first < chunks; first += kWindow) {
    LOCKSTEP_RETURN_IF_ERROR(AddUp(job, first, progress));
    if (to_all) {
      LOCKSTEP_RETURN_IF_ERROR(Circulate(job, call.output, first, progress));
    } else if (!scatters) {
      LOCKSTEP_RETURN_IF_ERROR(
          GatherAtRoot(job, call.output, call.peer, first, progress));
    }
  }
  // What comes next on stream_ comes after all kernels.
  LOCKSTEP_RETURN_IF_ERROR(Record(joined_, reduce_stream_.get()));
  return Wait(stream_, joined_);
}

Segment GpuRing::SegmentAt(const Job& job, int index) const {
  return SegmentOf(job.input.count, world_size_, index);
}

Segment GpuRing::ChunkAt(const Job& job, int index, int64_t first,
                         int number) const {
  return PieceOf(SegmentAt(job, index), job.chunk, first + number);
}

absl::Status GpuRing::Prepare() {
  if (memory_ != nullptr) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(memory_,
                            AllocateDeviceMemory(2 * kWindow * chunk_bytes_));
  std::byte* next = memory_.get();
  for (Slot& slot : slots_) {
    slot.incoming = next;
    slot.partial = next + chunk_bytes_;
    next += 2 * chunk_bytes_;
  }
  return absl::OkStatus();
}

// The first half of the ring: after it this rank has one segment complete.
absl::Status GpuRing::AddUp(const Job& job, int64_t first,
                            CallProgress& progress) {
  const DataType accumulator = AccumulatorOf(job.input.type, job.op);
  for (int step = 0; step < HalfRingSteps(world_size_); ++step) {
    const DataType travels = step == 0 ? job.input.type : accumulator;
    for (int i = 0; i < kWindow; ++i) {
      const Slot& slot = slots_[i];
      const Segment out =
          ChunkAt(job, SentSegment(job.as_rank, world_size_, step), first, i);
      const Segment in = ChunkAt(
          job, ReceivedSegment(job.as_rank, world_size_, step), first, i);
      if (out.count == 0 && in.count == 0) continue;
      const ConstBuffer sent =
          step == 0 ? job.input.Part(out.begin, out.count)
                    : ConstBuffer(slot.partial, out.count, travels);
      // `partial` is made, and `incoming` read.
      LOCKSTEP_RETURN_IF_ERROR(Wait(stream_, slot.reduced));
      LOCKSTEP_RETURN_IF_ERROR(
          handle_->Exchange(sent, next(), {slot.incoming, in.count, travels},
                            previous(), stream_, progress));
      LOCKSTEP_RETURN_IF_ERROR(ReduceChunk(job, step, in, slot));
    }
  }
  return absl::OkStatus();
}

// Adds this rank's own to a chunk that comes in `step`.
absl::Status GpuRing::ReduceChunk(const Job& job, int step, Segment chunk,
                                  const Slot& slot) {
  if (chunk.count == 0) return absl::OkStatus();
  const DataType type = job.input.type;
  const DataType accumulator = AccumulatorOf(type, job.op);
  const bool is_last = step == HalfRingSteps(world_size_) - 1;
  Buffer result(slot.partial, chunk.count, is_last ? type : accumulator);
  if (is_last && job.completed != nullptr) {
    const Segment own =
        SegmentAt(job, CompletedSegment(job.as_rank, world_size_));
    result.data = job.completed + (chunk.begin - own.begin) * SizeOf(type);
  }
  LOCKSTEP_RETURN_IF_ERROR(Record(slot.received, stream_));
  LOCKSTEP_RETURN_IF_ERROR(Wait(reduce_stream_.get(), slot.received));
  LOCKSTEP_RETURN_IF_ERROR(lockstep::Reduce(
      job.op, {slot.incoming, chunk.count, step == 0 ? type : accumulator},
      job.input.Part(chunk.begin, chunk.count), result,
      is_last && job.op == ReduceOp::kAverage ? world_size_ : 1,
      reduce_stream_.get()));
  return Record(slot.reduced, reduce_stream_.get());
}

// The second half: the complete segments go round, and replace.
absl::Status GpuRing::Circulate(const Job& job, Buffer output, int64_t first,
                                CallProgress& progress) {
  const int steps = AllReduceSteps(world_size_);
  for (int step = HalfRingSteps(world_size_); step < steps; ++step) {
    for (int i = 0; i < kWindow; ++i) {
      const Segment out =
          ChunkAt(job, SentSegment(rank_, world_size_, step), first, i);
      const Segment in =
          ChunkAt(job, ReceivedSegment(rank_, world_size_, step), first, i);
      if (out.count == 0 && in.count == 0) continue;
      LOCKSTEP_RETURN_IF_ERROR(Wait(stream_, slots_[i].reduced));
      LOCKSTEP_RETURN_IF_ERROR(handle_->Exchange(
          output.Part(out.begin, out.count), next(),
          output.Part(in.begin, in.count), previous(), stream_, progress));
    }
  }
  return absl::OkStatus();
}

// The complete segments go straight to the root.
absl::Status GpuRing::GatherAtRoot(const Job& job, Buffer output, int root,
                                   int64_t first, CallProgress& progress) {
  const auto move = [&](int i) {
    for (int peer = 0; peer < world_size_; ++peer) {
      if (peer == root || (rank_ != root && peer != rank_)) continue;
      const Segment chunk =
          ChunkAt(job, CompletedSegment(peer, world_size_), first, i);
      const ncclResult_t result =
          rank_ == root
              ? handle_->Receive(output.Part(chunk.begin, chunk.count), peer,
                                 stream_)
              : handle_->Send({slots_[i].partial, chunk.count, job.input.type},
                              root, stream_);
      if (!Started(result)) return result;
    }
    return ncclSuccess;
  };
  for (int i = 0; i < kWindow; ++i) {
    LOCKSTEP_RETURN_IF_ERROR(Wait(stream_, slots_[i].reduced));
    LOCKSTEP_RETURN_IF_ERROR(handle_->Group([&] { return move(i); }, progress));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
