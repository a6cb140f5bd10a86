// What the ranks of a host group can reach of each other's memory.
#ifndef LOCKSTEP_COLLECTIVES_HOST_GROUP_MEMORY_H_
#define LOCKSTEP_COLLECTIVES_HOST_GROUP_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/group_buffer.h"
#include "collectives/host/shared_memory.h"
#include "collectives/host/shared_region.h"

namespace lockstep {

// One rank's view of the allocations of its group, which every rank makes in
// the same order. Not thread safe, but the buffers that it hands out may go in
// any thread, at any time.
class GroupMemory {
 public:
  // `address_space`: ranks are threads, so all of their memory can be reached.
  GroupMemory(int rank, bool address_space)
      : rank_(rank), address_space_(address_space) {}

  // The bytes that an allocation of `bytes` for each rank takes: whole pages.
  static int64_t Stride(int64_t bytes);

  // Takes the next allocation: parts of Stride(bytes) bytes, in rank order.
  // Its pages go back to the system with the last copy of the buffer; its
  // addresses stay this object's, so that no rank ever sees another allocation
  // there.
  GroupBuffer Add(std::shared_ptr<SharedMemory> memory, int64_t bytes);

  // Where this rank has the memory; kUnreachable if it is none of these.
  Place PlaceOf(const void* data, int64_t size) const;

  // A place of `peer`, kAddressSpace or kAllocation, in this rank's addresses.
  std::byte* Resolve(int peer, const Place& place) const;

 private:
  struct Allocation {
    std::shared_ptr<SharedMemory> memory;
    int64_t stride;
  };

  int rank_;
  bool address_space_;
  std::vector<Allocation> allocations_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_GROUP_MEMORY_H_
