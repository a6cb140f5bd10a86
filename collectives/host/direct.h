// How data moves between ranks that share memory: in pieces, as over any
// transport, or directly, as ranks read and write each other's buffers.
#ifndef LOCKSTEP_COLLECTIVES_HOST_DIRECT_H_
#define LOCKSTEP_COLLECTIVES_HOST_DIRECT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/host/group_member.h"
#include "collectives/host/shared_region.h"

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

// One rank's view of the allocations of its group, which every rank makes in
// the same order. Not thread safe, but the buffers that it hands out may go in
// any thread, at any time.
class GroupMemory {
 public:
  // `address_space`: ranks are threads, so all of their memory can be reached.
  GroupMemory(int rank, bool address_space)
      : rank_(rank), address_space_(address_space) {}

  // The bytes that an allocation of `bytes` for each rank takes: whole pages,
  // huge ones from one on.
  static int64_t Stride(int64_t bytes);

  // Takes the next allocation: parts of Stride(bytes) bytes, in rank order.
  // Its pages go back to the system with the last copy of the buffer; its
  // addresses stay this object's, so that no rank ever sees another allocation
  // there.
  GroupBuffer Add(std::shared_ptr<SharedMemory> memory, int64_t bytes);

  // Returns where this rank has the memory; kUnreachable if no allocation holds
  // it. The first call for some memory puts it into huge pages.
  Place PlaceOf(const void* data, int64_t size);

  // A place of `peer`, kAddressSpace or kAllocation, in this rank's addresses.
  std::byte* Resolve(int peer, const Place& place) const;

 private:
  struct Allocation {
    std::shared_ptr<SharedMemory> memory;
    int64_t stride;
    // By huge page of this rank's part: whether the kernel was asked for it.
    std::vector<bool> huge_pages;
  };

  void UseHugePagesOf(Allocation& allocation, int64_t offset, int64_t size);

  int rank_;
  bool address_space_;
  std::vector<Allocation> allocations_;
};

// The places of `call`'s buffers, for GroupMember::Enter. An input of up to
// kStagedBytes is copied to where GroupMember stages it.
struct Places {
  Place input;
  Place output;
  std::span<const std::byte> here = {};  // Of an input that is kHere.

  // For the other ranks.
  bool reachable() const {
    return input.kind != Place::kUnreachable &&
           output.kind != Place::kUnreachable;
  }
};
Places PlacesOf(const Collective& call, GroupMember& member,
                GroupMemory& memory);

// How many ranks' places the others can reach in the running call, which can
// run directly if all can be. The same on every rank.
int CountReachable(const GroupMember& member);

// Runs the call that the member has entered with PlacesOf(call). Not kSend,
// kReceive, kBarrier, kAllocate, kSplit.
//
// Small inputs lie where they were staged, and each rank reduces or copies all
// that it wants from there. Else each rank reduces one segment of all ranks'
// inputs, in the ring's order, and writes it to all ranks' outputs; or copies
// from the others' inputs; and then all meet.
// Cost, of an AllReduce of n bytes: each rank reads n bytes and writes n, and
// where inputs are staged, reads P n.
absl::Status RunDirect(const Collective& call, GroupMember& member,
                       const GroupMemory& memory);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_DIRECT_H_
