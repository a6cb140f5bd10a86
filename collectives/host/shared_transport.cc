#include "collectives/host/shared_transport.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "collectives/algorithms/stream_copy.h"
#include "collectives/host/group_member.h"
#include "collectives/host/shared_region.h"

namespace lockstep {
namespace {

// Smaller pieces reach the other cache sooner than they reach memory.
constexpr int64_t kStreamedBytes = 4 << 10;

}  // namespace

int64_t SharedTransport::max_piece_bytes() const {
  return member_.region().shape().slot_bytes;
}

int SharedTransport::max_pieces() const { return kSlotsPerMailbox; }

bool SharedTransport::HasRoom(int peer) const {
  const Mailbox& mailbox = member_.region().mailbox(rank(), peer);
  return mailbox.sent.load(std::memory_order_relaxed) -
             mailbox.freed.load(std::memory_order_seq_cst) <
         kSlotsPerMailbox;
}

std::optional<std::span<std::byte>> SharedTransport::Room(int peer) {
  if (!HasRoom(peer)) return std::nullopt;
  if (piece_.empty()) {
    const auto size = static_cast<size_t>(max_piece_bytes());
    size_t space = size + kCacheLineBytes;
    piece_memory_ = std::make_unique_for_overwrite<std::byte[]>(space);
    void* aligned = piece_memory_.get();
    std::align(kCacheLineBytes, size, aligned, space);
    piece_ = {static_cast<std::byte*>(aligned), size};
  }
  return piece_;
}

void SharedTransport::Send(int peer, int64_t size) {
  const SharedRegion& region = member_.region();
  Mailbox& mailbox = region.mailbox(rank(), peer);
  const uint64_t sent = mailbox.sent.load(std::memory_order_relaxed);
  std::byte* const slot = region.slot(rank(), peer, sent).data();
  if (size < kStreamedBytes) {
    std::memcpy(slot, piece_.data(), static_cast<size_t>(size));
  } else {
    StreamCopy(piece_.data(), slot, size);
    FinishStreaming();
  }
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
    return (send_peer != kNobody && HasRoom(send_peer)) ||
           (receive_peer != kNobody && Received(receive_peer).has_value());
  });
}

}  // namespace lockstep
