#include "collectives/host/shared_region.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/group_options.h"
#include "collectives/host/shared_memory.h"

namespace lockstep {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free,
              "Processes cannot share a lock");

constexpr uint64_t kMagic = 0x4c6f636b73746570;  // "Lockstep".
constexpr int64_t kMaxSlotBytes = 16 << 20;

int64_t ControlsBegin() {
  return (sizeof(RegionHeader) + kCacheLinePair - 1) / kCacheLinePair *
         kCacheLinePair;
}

int64_t MailboxesBegin(const RegionShape& shape) {
  return ControlsBegin() + shape.world_size * int64_t{sizeof(RankControl)};
}

int64_t StagedBegin(const RegionShape& shape) {
  const int64_t pairs = int64_t{shape.world_size} * shape.world_size;
  const int64_t end = MailboxesBegin(shape) + pairs * int64_t{sizeof(Mailbox)};
  return (end + kPageBytes - 1) / kPageBytes * kPageBytes;
}

int64_t SlotsBegin(const RegionShape& shape) {
  return StagedBegin(shape) + 2 * shape.world_size * kStagedBytes;
}

int64_t RegionBytes(const RegionShape& shape) {
  const int64_t pairs = int64_t{shape.world_size} * shape.world_size;
  return SlotsBegin(shape) + pairs * kSlotsPerMailbox * shape.slot_bytes;
}

absl::Status CheckShape(const RegionShape& shape) {
  if (shape.world_size < 1 || shape.world_size > kMaxWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size ", shape.world_size, " is outside [1, ",
                     kMaxWorldSize, "]"));
  }
  if (shape.slot_bytes < 64 || shape.slot_bytes % 64 != 0 ||
      shape.slot_bytes > kMaxSlotBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot_bytes ", shape.slot_bytes,
                     " is not a multiple of 64 in [64, ", kMaxSlotBytes, "]"));
  }
  return absl::OkStatus();
}

}  // namespace

void AtomicCall::Store(const Call& call) {
  uint64_t words[kWords];
  std::memcpy(words, &call, sizeof(call));
  for (size_t i = 0; i < kWords; ++i) {
    words_[i].store(words[i], std::memory_order_relaxed);
  }
}

Call AtomicCall::Load() const {
  uint64_t words[kWords];
  for (size_t i = 0; i < kWords; ++i) {
    words[i] = words_[i].load(std::memory_order_relaxed);
  }
  Call call;
  std::memcpy(&call, words, sizeof(call));
  return call;
}

SharedRegion::SharedRegion(SharedMemory memory) : memory_(std::move(memory)) {}

void SharedRegion::Construct(const RegionShape& shape) {
  auto* header = new (memory_.data()) RegionHeader();
  header->shape = shape;
  header->magic = kMagic;
  for (int rank = 0; rank < shape.world_size; ++rank) {
    new (&control(rank)) RankControl();
    for (int to = 0; to < shape.world_size; ++to) {
      new (&mailbox(rank, to)) Mailbox();
    }
  }
}

absl::StatusOr<SharedRegion> SharedRegion::Create(const RegionShape& shape) {
  LOCKSTEP_RETURN_IF_ERROR(CheckShape(shape));
  LOCKSTEP_ASSIGN_OR_RETURN(SharedMemory memory,
                            SharedMemory::CreatePrivate(RegionBytes(shape)));
  SharedRegion region(std::move(memory));
  region.Construct(shape);
  return region;
}

absl::StatusOr<SharedRegion> SharedRegion::CreateShareable(
    const RegionShape& shape) {
  LOCKSTEP_RETURN_IF_ERROR(CheckShape(shape));
  LOCKSTEP_ASSIGN_OR_RETURN(SharedMemory memory,
                            SharedMemory::Create(RegionBytes(shape)));
  SharedRegion region(std::move(memory));
  region.Construct(shape);
  return region;
}

absl::StatusOr<SharedRegion> SharedRegion::Open(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Open(path));
  SharedRegion region(std::move(memory));
  const int64_t size = region.memory_.size();
  if (size < SlotsBegin({1, 64}) || region.header().magic != kMagic ||
      !CheckShape(region.shape()).ok() || RegionBytes(region.shape()) != size) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a group's memory"));
  }
  region.CloseFile();
  return region;
}

RegionHeader& SharedRegion::header() const {
  return *reinterpret_cast<RegionHeader*>(memory_.data());
}

RankControl& SharedRegion::control(int rank) const {
  return reinterpret_cast<RankControl*>(memory_.data() + ControlsBegin())[rank];
}

Mailbox& SharedRegion::mailbox(int from, int to) const {
  return reinterpret_cast<Mailbox*>(
      memory_.data() + MailboxesBegin(shape()))[from * shape().world_size + to];
}

std::span<std::byte> SharedRegion::staged(int rank, uint64_t sequence) const {
  const int64_t index = 2 * int64_t{rank} + static_cast<int64_t>(sequence % 2);
  return {memory_.data() + StagedBegin(shape()) + index * kStagedBytes,
          static_cast<size_t>(kStagedBytes)};
}

std::span<std::byte> SharedRegion::slot(int from, int to,
                                        uint64_t piece) const {
  const int64_t mailbox = int64_t{from} * shape().world_size + to;
  const int64_t index = mailbox * kSlotsPerMailbox +
                        static_cast<int64_t>(piece % kSlotsPerMailbox);
  return {memory_.data() + SlotsBegin(shape()) + index * shape().slot_bytes,
          static_cast<size_t>(shape().slot_bytes)};
}

}  // namespace lockstep
