#include "collectives/host/shared_transport.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "collectives/host/group_member.h"
#include "collectives/host/shared_region.h"

namespace lockstep {

int64_t SharedTransport::max_piece_bytes() const {
  return member_.region().shape().slot_bytes;
}

std::optional<std::span<std::byte>> SharedTransport::Room(int peer) {
  const SharedRegion& region = member_.region();
  const Mailbox& mailbox = region.mailbox(rank(), peer);
  const uint64_t sent = mailbox.sent.load(std::memory_order_relaxed);
  if (sent - mailbox.freed.load(std::memory_order_seq_cst) ==
      kSlotsPerMailbox) {
    return std::nullopt;
  }
  return region.slot(rank(), peer, sent);
}

void SharedTransport::Send(int peer, int64_t size) {
  Mailbox& mailbox = member_.region().mailbox(rank(), peer);
  const uint64_t sent = mailbox.sent.load(std::memory_order_relaxed);
  mailbox.sizes[sent % kSlotsPerMailbox] = size;
  mailbox.sent.store(sent + 1, std::memory_order_seq_cst);
  member_.Notify(peer);
}

std::optional<std::span<const std::byte>> SharedTransport::Received(int peer) {
  const SharedRegion& region = member_.region();
  const Mailbox& mailbox = region.mailbox(peer, rank());
  const uint64_t freed = mailbox.freed.load(std::memory_order_relaxed);
  if (mailbox.sent.load(std::memory_order_seq_cst) == freed) {
    return std::nullopt;
  }
  const int64_t size = mailbox.sizes[freed % kSlotsPerMailbox];
  return region.slot(peer, rank(), freed).first(static_cast<size_t>(size));
}

void SharedTransport::Release(int peer) {
  Mailbox& mailbox = member_.region().mailbox(peer, rank());
  const uint64_t freed = mailbox.freed.load(std::memory_order_relaxed);
  mailbox.freed.store(freed + 1, std::memory_order_seq_cst);
  member_.Notify(peer);
}

absl::Status SharedTransport::Wait(int send_peer, int receive_peer) {
  uint64_t peers = 0;
  if (send_peer != kNobody) peers |= uint64_t{1} << send_peer;
  if (receive_peer != kNobody) peers |= uint64_t{1} << receive_peer;
  return member_.WaitFor(peers, [&] {
    return (send_peer != kNobody && Room(send_peer).has_value()) ||
           (receive_peer != kNobody && Received(receive_peer).has_value());
  });
}

}  // namespace lockstep
