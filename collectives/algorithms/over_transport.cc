#include "collectives/algorithms/over_transport.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/algorithms/reduction.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"

namespace lockstep {
namespace {

std::span<const std::byte> BytesOf(const ConstBuffer& buffer) {
  return {buffer.bytes(), static_cast<size_t>(buffer.size_bytes())};
}
std::span<std::byte> BytesOf(const Buffer& buffer) {
  return {buffer.bytes(), static_cast<size_t>(buffer.size_bytes())};
}

// Moves a piece of the message to or from `peer`, if it can be at once; says
// whether.
using TryPiece =
    absl::FunctionRef<absl::StatusOr<bool>(int peer, Segment bytes)>;

// The root's side: a message of `size` bytes for every other rank, pieces of
// all of them in turn.
absl::Status ServeAll(const Transport& transport, int64_t size,
                      TryPiece try_piece,
                      absl::FunctionRef<absl::Status(int peer)> wait) {
  const int64_t piece = transport.max_piece_bytes();
  const int64_t pieces = PieceCount(size, piece);
  std::vector<int64_t> moved(transport.world_size());
  moved[transport.rank()] = pieces;
  while (true) {
    bool progress = false;
    int foremost = Transport::kNobody;  // Of those that are not done.
    for (int peer = 0; peer < transport.world_size(); ++peer) {
      if (moved[peer] == pieces) continue;
      LOCKSTEP_ASSIGN_OR_RETURN(
          const bool done,
          try_piece(peer, PieceOf({0, size}, piece, moved[peer])));
      if (done) {
        ++moved[peer];
        progress = true;
      }
      if (moved[peer] < pieces &&
          (foremost == Transport::kNobody || moved[peer] > moved[foremost])) {
        foremost = peer;
      }
    }
    if (foremost == Transport::kNobody) return absl::OkStatus();
    if (!progress) LOCKSTEP_RETURN_IF_ERROR(wait(foremost));
  }
}

absl::Status ScatterFromRoot(Transport& transport, ConstBuffer input,
                             int64_t part) {
  return ServeAll(
      transport, part * SizeOf(input.type),
      [&](int peer, Segment bytes) -> absl::StatusOr<bool> {
        if (!transport.Room(peer).has_value()) return false;
        LOCKSTEP_RETURN_IF_ERROR(
            SendPiece(transport, peer, bytes,
                      CopyFrom(input.Part(peer * part, part).bytes())));
        return true;
      },
      [&](int peer) { return transport.Wait(peer, Transport::kNobody); });
}

absl::Status GatherAtRoot(Transport& transport, Buffer output, int64_t part) {
  return ServeAll(
      transport, part * SizeOf(output.type),
      [&](int peer, Segment bytes) -> absl::StatusOr<bool> {
        if (!transport.Received(peer).has_value()) return false;
        LOCKSTEP_RETURN_IF_ERROR(
            ReceivePiece(transport, peer, bytes,
                         CopyTo(output.Part(peer * part, part).bytes())));
        return true;
      },
      [&](int peer) { return transport.Wait(Transport::kNobody, peer); });
}

static_assert(std::is_trivially_copyable_v<Call>);

absl::Status AgreeWithPeer(Transport& transport, const Collective& collective) {
  const int rank = transport.rank();
  const int peer = collective.peer;
  const Call call = CallOf(collective, transport.world_size());
  Call other;
  const std::span<std::byte> received =
      std::as_writable_bytes(std::span(&other, 1));
  LOCKSTEP_RETURN_IF_ERROR(ExchangeMessages(
      transport, peer, std::as_bytes(std::span(&call, 1)), peer,
      static_cast<int64_t>(received.size()), CopyTo(received.data())));
  Call wanted = call;
  wanted.operation = call.operation == Operation::kSend ? Operation::kReceive
                                                        : Operation::kSend;
  wanted.peer = rank;
  if (Agree(other, wanted)) return absl::OkStatus();
  // Both ranks word it alike: the lower one comes first.
  return rank < peer ? CallsDiffer("ranks disagree", rank, call, peer, other)
                     : CallsDiffer("ranks disagree", peer, other, rank, call);
}

absl::Status PairwiseScatter(Transport& transport, ConstBuffer input,
                             Buffer output, int root) {
  if (transport.rank() != root) {
    return ReceiveBytes(transport, root, BytesOf(output));
  }
  CopyElements(input.Part(root * output.count, output.count), output);
  return ScatterFromRoot(transport, input, output.count);
}

// P-1 steps: in step s each rank sends to rank + s and receives from rank - s.
absl::Status PairwiseAllToAll(Transport& transport, ConstBuffer input,
                              Buffer output) {
  const int rank = transport.rank();
  const int world_size = transport.world_size();
  const int64_t part = input.count / world_size;
  CopyElements(input.Part(rank * part, part), output.Part(rank * part, part));
  for (int step = 1; step < world_size; ++step) {
    const int to = RankModulo(rank + step, world_size);
    const int from = RankModulo(rank - step, world_size);
    const Buffer place = output.Part(from * part, part);
    LOCKSTEP_RETURN_IF_ERROR(
        ExchangeMessages(transport, to, BytesOf(input.Part(to * part, part)),
                         from, place.size_bytes(), CopyTo(place.bytes())));
  }
  return absl::OkStatus();
}

absl::Status SendOrReceive(Transport& transport, const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(AgreeWithPeer(transport, call));
  if (call.operation == Operation::kSend) {
    return SendBytes(transport, call.peer, BytesOf(call.input));
  }
  return ReceiveBytes(transport, call.peer, BytesOf(call.output));
}

// A message takes P-1 hops round a ring, and in a tree up to 2 log2(P) + 2, of
// which there are fewer from 4 ranks on where ranges are not halved.
constexpr int kMaxGatherRanks = 3;

// Among the algorithms in tree order.
bool UsesTree(Algorithm algorithm, int world_size) {
  if (algorithm == Algorithm::kRing) return false;
  return algorithm == Algorithm::kTree || world_size > kMaxGatherRanks;
}

absl::Status AllReduce(Transport& transport, const Collective& call,
                       Algorithm algorithm) {
  const bool small = InTreeOrder(call.input.size_bytes());
  if (!small && !call.uniform) {
    return RingAllReduce(transport, call.input, call.output, call.op);
  }
  if (!small || UsesTree(algorithm, transport.world_size())) {
    return TreeAllReduce(transport, call.input, call.output, call.op);
  }
  return GatherAllReduce(transport, call.input, call.output, call.op);
}

absl::Status Reduce(Transport& transport, const Collective& call,
                    Algorithm algorithm) {
  if (!InTreeOrder(call.input.size_bytes())) {
    return RingReduce(transport, call.input, call.output, call.op, call.peer);
  }
  if (UsesTree(algorithm, transport.world_size())) {
    return TreeReduce(transport, call.input, call.output, call.op, call.peer);
  }
  return GatherReduce(transport, call.input, call.output, call.op, call.peer);
}

}  // namespace

absl::Status PairwiseGather(Transport& transport, ConstBuffer input,
                            Buffer output, int root) {
  if (transport.rank() != root) {
    return SendBytes(transport, root, BytesOf(input));
  }
  CopyElements(input, output.Part(root * input.count, input.count));
  return GatherAtRoot(transport, output, input.count);
}

absl::Status RunOverTransport(Transport& transport, const Collective& call,
                              Algorithm algorithm) {
  if (Reduces(call.operation) && transport.world_size() == 1) {
    CopyElements(call.input, call.output);
    return absl::OkStatus();
  }
  switch (call.operation) {
    case Operation::kAllReduce:
      return AllReduce(transport, call, algorithm);
    case Operation::kReduce:
      return Reduce(transport, call, algorithm);
    case Operation::kReduceScatter:
      return RingReduceScatter(transport, call.input, call.output, call.op);
    case Operation::kAllGather:
      return RingAllGather(transport, call.input, call.output, call.counts);
    case Operation::kBroadcast:
      return RingBroadcast(transport, call.output, call.peer);
    case Operation::kScatter:
      return PairwiseScatter(transport, call.input, call.output, call.peer);
    case Operation::kGather:
      return PairwiseGather(transport, call.input, call.output, call.peer);
    case Operation::kAllToAll:
      return PairwiseAllToAll(transport, call.input, call.output);
    case Operation::kSend:
    case Operation::kReceive:
      return SendOrReceive(transport, call);
    case Operation::kBarrier:
    case Operation::kAllocate:
    case Operation::kSplit:
      break;
  }
  return absl::InternalError(
      absl::StrCat(Name(call.operation), " moves no data"));
}

}  // namespace lockstep
