#include "collectives/algorithms/pairwise.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/algorithms/copy.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/algorithms/transport.h"
#include "collectives/call.h"
#include "collectives/collective.h"

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
        const std::byte* const from = input.Part(peer * part, part).bytes();
        LOCKSTEP_RETURN_IF_ERROR(
            SendPiece(transport, peer, bytes,
                      [from](int64_t offset, std::span<std::byte> room) {
                        std::memcpy(room.data(), from + offset, room.size());
                      }));
        return true;
      },
      [&](int peer) { return transport.Wait(peer, Transport::kNobody); });
}

absl::Status GatherAtRoot(Transport& transport, Buffer output, int64_t part) {
  return ServeAll(
      transport, part * SizeOf(output.type),
      [&](int peer, Segment bytes) -> absl::StatusOr<bool> {
        if (!transport.Received(peer).has_value()) return false;
        std::byte* const to = output.Part(peer * part, part).bytes();
        LOCKSTEP_RETURN_IF_ERROR(ReceivePiece(
            transport, peer, bytes,
            [to](int64_t offset, std::span<const std::byte> piece) {
              std::memcpy(to + offset, piece.data(), piece.size());
            }));
        return true;
      },
      [&](int peer) { return transport.Wait(Transport::kNobody, peer); });
}

static_assert(std::is_trivially_copyable_v<Call>);

// What the peer of a call has to have called.
Call MirrorOf(Call call, int rank) {
  call.operation = call.operation == Operation::kSend ? Operation::kReceive
                                                      : Operation::kSend;
  call.peer = rank;
  return call;
}

// Both ranks word it alike: the lower one comes first.
absl::Status Disagreement(int rank, const Call& call, int peer,
                          const Call& other) {
  return rank < peer ? CallsDiffer("ranks disagree", rank, call, peer, other)
                     : CallsDiffer("ranks disagree", peer, other, rank, call);
}

absl::Status AgreeWithPeer(Transport& transport, const Collective& collective) {
  const int rank = transport.rank();
  const int peer = collective.peer;
  const Call call = CallOf(collective, transport.world_size());
  Call other;
  const std::span<std::byte> received =
      std::as_writable_bytes(std::span(&other, 1));
  LOCKSTEP_RETURN_IF_ERROR(ExchangeMessages(
      transport, peer, std::as_bytes(std::span(&call, 1)), peer,
      static_cast<int64_t>(received.size()),
      [received](int64_t offset, std::span<const std::byte> piece) {
        std::memcpy(received.data() + offset, piece.data(), piece.size());
      }));
  if (Agree(other, MirrorOf(call, rank))) return absl::OkStatus();
  return Disagreement(rank, call, peer, other);
}

}  // namespace

absl::Status PairwiseScatter(Transport& transport, ConstBuffer input,
                             Buffer output, int root) {
  if (transport.rank() != root) {
    return ReceiveBytes(transport, root, BytesOf(output));
  }
  CopyElements(input.Part(root * output.count, output.count), output);
  return ScatterFromRoot(transport, input, output.count);
}

absl::Status PairwiseGather(Transport& transport, ConstBuffer input,
                            Buffer output, int root) {
  if (transport.rank() != root) {
    return SendBytes(transport, root, BytesOf(input));
  }
  CopyElements(input, output.Part(root * input.count, input.count));
  return GatherAtRoot(transport, output, input.count);
}

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
    LOCKSTEP_RETURN_IF_ERROR(ExchangeMessages(
        transport, to, BytesOf(input.Part(to * part, part)), from,
        place.size_bytes(),
        [place](int64_t offset, std::span<const std::byte> piece) {
          std::memcpy(place.bytes() + offset, piece.data(), piece.size());
        }));
  }
  return absl::OkStatus();
}

absl::Status SendOrReceive(Transport& transport, const Collective& call) {
  LOCKSTEP_RETURN_IF_ERROR(AgreeWithPeer(transport, call));
  if (call.operation == Operation::kSend) {
    return SendBytes(
        transport, call.peer,
        {call.input.bytes(), static_cast<size_t>(call.input.size_bytes())});
  }
  return ReceiveBytes(
      transport, call.peer,
      {call.output.bytes(), static_cast<size_t>(call.output.size_bytes())});
}

}  // namespace lockstep
