// The transport of ranks that share memory.
#ifndef LOCKSTEP_COLLECTIVES_HOST_SHARED_TRANSPORT_H_
#define LOCKSTEP_COLLECTIVES_HOST_SHARED_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "collectives/algorithms/transport.h"
#include "collectives/host/group_member.h"

namespace lockstep {

// Borrows the member.
//
// A piece is made in memory of this rank's own and then copied past the caches
// into the slot. Were it made there, each line would first have to be taken out
// of the cache of the receiver, which read it when the slot was last used: on
// two cores that was seen to take 43 us for 128 KiB, the way round 7 us.
class SharedTransport : public Transport {
 public:
  explicit SharedTransport(GroupMember& member) : member_(member) {}

  int rank() const override { return member_.rank(); }
  int world_size() const override { return member_.world_size(); }
  int64_t max_piece_bytes() const override;
  int max_pieces() const override;
  std::optional<std::span<std::byte>> Room(int peer) override;
  void Send(int peer, int64_t size) override;
  std::optional<std::span<const std::byte>> Received(int peer) override;
  void Release(int peer) override;
  absl::Status Wait(int send_peer, int receive_peer) override;

 private:
  bool HasRoom(int peer) const;

  GroupMember& member_;
  // max_piece_bytes, once something was sent.
  std::unique_ptr<std::byte[]> piece_memory_;
  std::span<std::byte> piece_;  // Of it, aligned.
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_SHARED_TRANSPORT_H_
