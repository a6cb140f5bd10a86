// The transport of ranks that share memory.
#ifndef LOCKSTEP_COLLECTIVES_HOST_SHARED_TRANSPORT_H_
#define LOCKSTEP_COLLECTIVES_HOST_SHARED_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "collectives/host/group_member.h"
#include "collectives/host/transport.h"

namespace lockstep {

// Borrows the member.
class SharedTransport : public Transport {
 public:
  explicit SharedTransport(GroupMember& member) : member_(member) {}

  int rank() const override { return member_.rank(); }
  int world_size() const override { return member_.world_size(); }
  int64_t max_piece_bytes() const override;
  std::optional<std::span<std::byte>> Room(int peer) override;
  void Send(int peer, int64_t size) override;
  std::optional<std::span<const std::byte>> Received(int peer) override;
  void Release(int peer) override;
  absl::Status Wait(int send_peer, int receive_peer) override;

 private:
  GroupMember& member_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_SHARED_TRANSPORT_H_
