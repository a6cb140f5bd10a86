// The ring algorithms.
#include "collectives/algorithms/ring.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"

namespace lockstep {
namespace {

// Pieces [first, last) of every segment, each of up to `piece` elements.
//
// The segments go round one window at a time. Ranks pass a partial sum on from
// one piece of the transport's memory to another. If all ranks began with a
// whole segment, all of that memory would fill up and no rank could send.
struct Window {
  int64_t piece;
  int64_t first;
  int64_t last;
};

absl::Status ForEachWindow(
    const Transport& transport, int64_t longest_segment, int64_t piece,
    absl::FunctionRef<absl::Status(const Window&)> visit) {
  const int64_t pieces = PieceCount(longest_segment, piece);
  const int64_t size = MaxPiecesAhead(transport);
  for (int64_t first = 0; first < pieces; first += size) {
    LOCKSTEP_RETURN_IF_ERROR(visit({piece, first, first + size}));
  }
  return absl::OkStatus();
}

absl::Status ForEachPiece(const Window& window, Segment segment,
                          absl::FunctionRef<absl::Status(Segment)> visit) {
  const int64_t last =
      std::min(window.last, PieceCount(segment.count, window.piece));
  for (int64_t i = window.first; i < last; ++i) {
    LOCKSTEP_RETURN_IF_ERROR(visit(PieceOf(segment, window.piece, i)));
  }
  return absl::OkStatus();
}

int Next(const Transport& transport) {
  return RankModulo(transport.rank() + 1, transport.world_size());
}
int Previous(const Transport& transport) {
  return RankModulo(transport.rank() - 1, transport.world_size());
}

absl::Status SendElements(Transport& transport, int peer, ConstBuffer data) {
  return SendPiece(transport, peer, {0, data.size_bytes()},
                   CopyFrom(data.bytes()));
}

absl::Status ReceiveElements(Transport& transport, int peer, Buffer data) {
  return ReceivePiece(transport, peer, {0, data.size_bytes()},
                      CopyTo(data.bytes()));
}

// Sends segments of `output` round the ring whole. Each rank receives
// `received` in this order and passes all segments but the last on.
absl::Status Circulate(Transport& transport, const Window& window,
                       Buffer output, Segment received, bool pass_on) {
  return ForEachPiece(window, received, [&](Segment piece) {
    const Buffer place = output.Part(piece.begin, piece.count);
    LOCKSTEP_RETURN_IF_ERROR(
        ReceiveElements(transport, Previous(transport), place));
    if (!pass_on) return absl::OkStatus();
    return SendElements(transport, Next(transport), place);
  });
}

// The first half of a ring: partial sums go round and end complete.
class ReducingRing {
 public:
  // as_rank: the rank whose all-reduce steps this rank takes.
  ReducingRing(Transport& transport, ConstBuffer input, ReduceOp op,
               int as_rank)
      : transport_(transport),
        reduction_(input.type, op, transport.world_size()),
        input_(input),
        as_rank_(as_rank) {}

  Segment SegmentAt(int index) const {
    return SegmentOf(input_.count, transport_.world_size(), index);
  }

  absl::Status ForEachWindow(
      absl::FunctionRef<absl::Status(const Window&)> visit) const {
    return lockstep::ForEachWindow(
        transport_, SegmentAt(0).count,
        transport_.max_piece_bytes() / SizeOf(reduction_.accumulator()), visit);
  }

  // The destination of a complete segment: memory, a rank, or both.
  struct Target {
    std::byte* segment = nullptr;  // Null for none.
    int peer = Transport::kNoRank;
  };

  absl::Status AddUp(const Window& window, const Target& target) {
    const int world_size = transport_.world_size();
    const int steps = HalfRingSteps(world_size);
    LOCKSTEP_RETURN_IF_ERROR(
        ForEachPiece(window, SegmentAt(SentSegment(as_rank_, world_size, 0)),
                     [this](Segment piece) { return Start(piece); }));
    for (int step = 0; step < steps; ++step) {
      const Segment segment =
          SegmentAt(ReceivedSegment(as_rank_, world_size, step));
      LOCKSTEP_RETURN_IF_ERROR(
          ForEachPiece(window, segment, [&](Segment piece) {
            return step < steps - 1 ? PassOn(piece)
                                    : Complete(piece, segment, target);
          }));
    }
    return absl::OkStatus();
  }

 private:
  int64_t AccumulatorBytes(Segment piece) const {
    return piece.count * SizeOf(reduction_.accumulator());
  }

  absl::Status Start(Segment piece) {
    const int next = Next(transport_);
    LOCKSTEP_ASSIGN_OR_RETURN(const std::span<std::byte> room,
                              AwaitPieceBuffer(transport_, next));
    reduction_.Begin(input_.Part(piece.begin, piece.count).data, room.data(),
                     piece.count);
    transport_.Send(next, AccumulatorBytes(piece));
    return absl::OkStatus();
  }

  absl::Status PassOn(Segment piece) {
    const int next = Next(transport_);
    const int previous = Previous(transport_);
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::span<const std::byte> received,
        AwaitPiece(transport_, previous, AccumulatorBytes(piece)));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::span<std::byte> room,
                              AwaitPieceBuffer(transport_, next));
    reduction_.Accumulate(received.data(),
                          input_.Part(piece.begin, piece.count).data,
                          room.data(), piece.count);
    transport_.Release(previous);
    transport_.Send(next, AccumulatorBytes(piece));
    return absl::OkStatus();
  }

  absl::Status Complete(Segment piece, Segment segment, const Target& target) {
    const int previous = Previous(transport_);
    const int64_t element = SizeOf(input_.type);
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::span<const std::byte> received,
        AwaitPiece(transport_, previous, AccumulatorBytes(piece)));
    void* outputs[2];
    size_t count = 0;
    if (target.segment != nullptr) {
      outputs[count++] =
          target.segment + (piece.begin - segment.begin) * element;
    }
    if (target.peer != Transport::kNoRank) {
      LOCKSTEP_ASSIGN_OR_RETURN(const std::span<std::byte> room,
                                AwaitPieceBuffer(transport_, target.peer));
      outputs[count++] = room.data();
    }
    CompleteReduction(reduction_, received.data(),
                      input_.Part(piece.begin, piece.count).data,
                      std::span(outputs, count), piece.count);
    transport_.Release(previous);
    if (target.peer != Transport::kNoRank) {
      transport_.Send(target.peer, piece.count * element);
    }
    return absl::OkStatus();
  }

  Transport& transport_;
  const Reduction reduction_;
  const ConstBuffer input_;
  const int as_rank_;
};

std::vector<Segment> PartsOf(std::span<const int64_t> counts, int world_size,
                             int64_t equal_count) {
  std::vector<Segment> parts;
  int64_t begin = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    const int64_t count = counts.empty() ? equal_count : counts[rank];
    parts.push_back({begin, count});
    begin += count;
  }
  return parts;
}

}  // namespace

absl::Status RingReduce(Transport& transport, const Collective& call) {
  const int rank = transport.rank();
  const int world_size = transport.world_size();
  const bool scatters = call.operation == Operation::kReduceScatter;
  const bool to_all = call.operation == Operation::kAllReduce;
  const bool is_root = !scatters && !to_all && rank == call.peer;
  ReducingRing ring(transport, call.input, call.op,
                    scatters ? ReduceScatterRank(rank, world_size) : rank);
  const auto completed = [&](int peer) {
    return ring.SegmentAt(CompletedSegment(peer, world_size));
  };
  ReducingRing::Target target;
  if (scatters) target.segment = call.output.bytes();
  if (to_all || is_root) {
    target.segment = call.output.Part(completed(rank).begin, 0).bytes();
  }
  if (!scatters && !is_root) target.peer = to_all ? Next(transport) : call.peer;
  return ring.ForEachWindow([&](const Window& window) {
    LOCKSTEP_RETURN_IF_ERROR(ring.AddUp(window, target));
    const int steps = to_all ? AllReduceSteps(world_size) : 0;
    for (int step = HalfRingSteps(world_size); step < steps; ++step) {
      LOCKSTEP_RETURN_IF_ERROR(
          Circulate(transport, window, call.output,
                    ring.SegmentAt(ReceivedSegment(rank, world_size, step)),
                    /*pass_on=*/step < steps - 1));
    }
    for (int peer = 0; is_root && peer < world_size; ++peer) {
      if (peer == rank) continue;
      LOCKSTEP_RETURN_IF_ERROR(
          ForEachPiece(window, completed(peer), [&](Segment piece) {
            return ReceiveElements(transport, peer,
                                   call.output.Part(piece.begin, piece.count));
          }));
    }
    return absl::OkStatus();
  });
}

absl::Status RingAllGather(Transport& transport, const Collective& call) {
  const int rank = transport.rank();
  const int world_size = transport.world_size();
  const Buffer& output = call.output;
  const std::vector<Segment> parts =
      PartsOf(call.counts, world_size, call.input.count);
  CopyElements(call.input, output.Part(parts[rank].begin, parts[rank].count));
  if (world_size == 1) return absl::OkStatus();
  int64_t longest = 0;
  for (const Segment& part : parts) longest = std::max(longest, part.count);
  const int64_t piece_elements =
      transport.max_piece_bytes() / SizeOf(output.type);
  return ForEachWindow(
      transport, longest, piece_elements, [&](const Window& window) {
        LOCKSTEP_RETURN_IF_ERROR(ForEachPiece(
            window, parts[SentSegment(rank, world_size, 0)],
            [&](Segment piece) {
              return SendElements(transport, Next(transport),
                                  output.Part(piece.begin, piece.count));
            }));
        const int steps = HalfRingSteps(world_size);
        for (int step = 0; step < steps; ++step) {
          LOCKSTEP_RETURN_IF_ERROR(
              Circulate(transport, window, output,
                        parts[ReceivedSegment(rank, world_size, step)],
                        /*pass_on=*/step < steps - 1));
        }
        return absl::OkStatus();
      });
}

absl::Status RingBroadcast(Transport& transport, const Collective& call) {
  const Buffer& data = call.output;
  const int world_size = transport.world_size();
  const int distance = RankModulo(transport.rank() - call.peer, world_size);
  const bool pass_on = distance < world_size - 1;
  const Window all = {transport.max_piece_bytes() / SizeOf(data.type), 0,
                      INT64_MAX};
  if (distance > 0) {
    return Circulate(transport, all, data, {0, data.count}, pass_on);
  }
  if (!pass_on) return absl::OkStatus();
  return ForEachPiece(all, {0, data.count}, [&](Segment piece) {
    return SendElements(transport, Next(transport),
                        data.Part(piece.begin, piece.count));
  });
}

}  // namespace lockstep
