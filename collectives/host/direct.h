// Moves data between ranks that share memory: in pieces, as over any transport,
// or directly, where ranks read and write each other's buffers.
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

// The transport of ranks that share memory. Borrows the member.
//
// Each piece is made in memory of this rank and then copied past the caches
// into the slot. The receiver's cache holds the lines of the slot, because the
// receiver read them when the slot was last used. Making the piece in the slot
// would first have to move each line out of that cache. On two cores that was
// measured at 43 us for 128 KiB, and the copy at 7 us.
class SharedTransport : public Transport {
 public:
  explicit SharedTransport(GroupMember& member) : member_(member) {}

  int rank() const override { return member_.rank(); }
  int world_size() const override { return member_.world_size(); }
  int64_t max_piece_bytes() const override;
  int max_pieces() const override;
  std::optional<std::span<std::byte>> PieceBuffer(int peer) override;
  void Send(int peer, int64_t size) override;
  std::optional<std::span<const std::byte>> Received(int peer) override;
  void Release(int peer) override;
  absl::Status Wait(int send_peer, int receive_peer) override;

 private:
  bool HasFreeSlot(int peer) const;

  GroupMember& member_;
  // max_piece_bytes long; null before the first piece.
  std::unique_ptr<std::byte[]> piece_memory_;
  std::span<std::byte> piece_;  // The aligned part of piece_memory_.
};

// One rank's view of the allocations of its group, which every rank makes in
// the same order. Not thread safe, but any thread may drop a buffer that it
// handed out, at any time.
class GroupMemory {
 public:
  // address_space: ranks are threads, so all of their memory can be reached.
  GroupMemory(int rank, bool address_space)
      : rank_(rank), address_space_(address_space) {}

  // Returns the bytes that an allocation of `bytes` for each rank takes: whole
  // pages, or whole huge pages from one huge page on.
  static int64_t Stride(int64_t bytes);

  // Takes the next allocation: parts of Stride(bytes) bytes, in rank order. Its
  // pages are freed with the last copy of the buffer. Its addresses stay
  // reserved by this object, so no rank ever sees another allocation there.
  GroupBuffer Add(std::shared_ptr<SharedMemory> memory, int64_t bytes);

  // Returns the place of this rank's memory; kUnreachable if no allocation
  // holds it. The first call for some memory puts it into huge pages.
  BufferLocation LocationOf(const void* data, int64_t size);

  // Returns the address in this process of a place of `peer` (kAddressSpace or
  // kAllocation).
  std::byte* Resolve(int peer, const BufferLocation& place) const;

 private:
  struct Allocation {
    std::shared_ptr<SharedMemory> memory;
    int64_t stride;
    // For each huge page of this rank's part, whether the kernel was asked for
    // it.
    std::vector<bool> huge_pages;
  };

  void UseHugePagesOf(Allocation& allocation, int64_t offset, int64_t size);

  int rank_;
  bool address_space_;
  std::vector<Allocation> allocations_;
};

// The places of a call's buffers, for GroupMember::Enter. LocationsOf copies an
// input of up to kStagedBytes to the memory in which GroupMember stages it.
struct BufferLocations {
  BufferLocation input;
  BufferLocation output;
  std::span<const std::byte> here = {};  // The input, if it is kInline.

  // Returns whether other ranks can reach both buffers.
  bool reachable() const {
    return input.kind != BufferLocation::kUnreachable &&
           output.kind != BufferLocation::kUnreachable;
  }
};
BufferLocations LocationsOf(const Collective& call, GroupMember& member,
                            GroupMemory& memory);

// Returns the number of ranks whose places the others can reach in the running
// call. The call can run directly if they can reach all. The result is the same
// on every rank.
int CountReachable(const GroupMember& member);

// Runs the call that the member has entered with LocationsOf(call). kSend,
// kReceive, kBarrier, kAllocate and kSplit are not supported.
//
// Small inputs are staged, and each rank reduces or copies all that it needs
// from there. For larger inputs each rank reduces one segment of all ranks'
// inputs, in the ring's order, and writes it to all ranks' outputs; or it
// copies from the others' inputs. Then all ranks meet.
//
// Cost of an AllReduce of n bytes: each rank reads n bytes and writes n. If
// inputs are staged, it reads P n.
absl::Status RunDirect(const Collective& call, GroupMember& member,
                       const GroupMemory& memory);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_DIRECT_H_
