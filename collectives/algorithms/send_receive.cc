// Send and Receive.
#include "collectives/algorithms/send_receive.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "collectives/algorithms/pieces.h"
#include "collectives/algorithms/transport.h"
#include "collectives/call.h"
#include "collectives/call_errors.h"
#include "collectives/collective.h"

namespace lockstep {
namespace {

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
