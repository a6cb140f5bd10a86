#include "collectives/host/group_memory.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "collectives/group_buffer.h"
#include "collectives/host/shared_memory.h"
#include "collectives/host/shared_region.h"

namespace lockstep {
namespace {

// std::less_equal orders pointers into different objects, which <= need not.
bool Within(const std::byte* data, int64_t size, const std::byte* part,
            int64_t part_size) {
  const std::less_equal<const std::byte*> not_after;
  return not_after(part, data) && not_after(data + size, part + part_size);
}

}  // namespace

int64_t GroupMemory::Stride(int64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

GroupBuffer GroupMemory::Add(std::shared_ptr<SharedMemory> memory,
                             int64_t bytes) {
  const int64_t stride = Stride(bytes);
  const int64_t begin = rank_ * stride;
  allocations_.push_back({memory, stride});
  std::byte* part = memory->data() + begin;
  std::shared_ptr<void> owner(
      part, [memory, begin, stride](void*) { memory->Discard(begin, stride); });
  return GroupBuffer(std::move(owner), {part, static_cast<size_t>(bytes)});
}

Place GroupMemory::PlaceOf(const void* data, int64_t size) const {
  if (size == 0) return {Place::kNothing, 0, 0};
  if (address_space_) {
    return {Place::kAddressSpace, 0, reinterpret_cast<uintptr_t>(data)};
  }
  const std::byte* bytes = static_cast<const std::byte*>(data);
  for (size_t i = 0; i < allocations_.size(); ++i) {
    const Allocation& allocation = allocations_[i];
    const std::byte* part =
        allocation.memory->data() + rank_ * allocation.stride;
    if (Within(bytes, size, part, allocation.stride)) {
      return {Place::kAllocation, static_cast<int32_t>(i),
              static_cast<uint64_t>(bytes - part)};
    }
  }
  return {};
}

std::byte* GroupMemory::Resolve(int peer, const Place& place) const {
  if (place.kind == Place::kAddressSpace) {
    return reinterpret_cast<std::byte*>(place.offset);
  }
  const Allocation& allocation = allocations_[place.number];
  return allocation.memory->data() + peer * allocation.stride + place.offset;
}

}  // namespace lockstep
