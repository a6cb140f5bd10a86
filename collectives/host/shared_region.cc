#include "collectives/host/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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
#include "base/files.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"

namespace lockstep {
namespace {

absl::Status OutOfMemory(const char* call, int64_t size) {
  return absl::ResourceExhaustedError(
      absl::StrCat(call, " of ", size,
                   " bytes shared by the ranks: ", std::strerror(errno)));
}

static_assert(std::atomic<uint64_t>::is_always_lock_free,
              "Processes cannot share a lock");

constexpr uint64_t kMagic = 0x4c6f636b73746570;  // "Lockstep".
constexpr int64_t kMaxSlotBytes = 16 << 20;

// Values that the C library's headers may not define.
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14.
constexpr int kCollapse = 25;       // MADV_COLLAPSE, Linux 6.1.

int64_t ControlsBegin() {
  return RoundUp(sizeof(RegionHeader), kCacheLinePair);
}

int64_t MailboxesBegin(const RegionShape& shape) {
  return ControlsBegin() + shape.world_size * int64_t{sizeof(RankControl)};
}

int64_t StagedBegin(const RegionShape& shape) {
  const int64_t pairs = int64_t{shape.world_size} * shape.world_size;
  const int64_t end = MailboxesBegin(shape) + pairs * int64_t{sizeof(Mailbox)};
  return RoundUp(end, kPageBytes);
}

int64_t SlotsBegin(const RegionShape& shape) {
  return StagedBegin(shape) + kStagedCalls * shape.world_size * kStagedBytes;
}

int64_t PiecesBegin(const RegionShape& shape) {
  const int64_t pairs = int64_t{shape.world_size} * shape.world_size;
  const int64_t end =
      SlotsBegin(shape) + pairs * kSlotsPerMailbox * shape.slot_bytes;
  return RoundUp(end, kHugePageBytes);
}

int64_t RegionBytes(const RegionShape& shape) {
  return PiecesBegin(shape) + shape.world_size * PiecesBytes(shape);
}

// Reserves `size` bytes of addresses that begin at a huge page. Returns null if
// the addresses are not available, or `size` is smaller than a huge page.
void* FindAddress(int64_t size) {
  if (size < kHugePageBytes) return nullptr;
  const int64_t reserved = size + kHugePageBytes;
  void* const range = mmap(nullptr, reserved, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(range);
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(range));
  const int64_t before = -address & (kHugePageBytes - 1);
  const int64_t used = RoundUp(size, kPageBytes);
  if (before > 0) munmap(begin, before);
  munmap(begin + before + used, reserved - before - used);
  return begin + before;
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

int64_t PieceBytes(const RegionShape& shape) {
  const int64_t part = 2 * shape.slot_bytes / shape.world_size / 64 * 64;
  return shape.world_size * std::max<int64_t>(part, 64);
}

int64_t PiecesBytes(const RegionShape& shape) {
  return kStagedPieces * PieceBytes(shape);
}

void SharedMemory::Unmap::operator()(std::byte* base) const {
  munmap(base, size);
}

absl::StatusOr<SharedMemory> SharedMemory::Map(OwnedFd file, int64_t size) {
  void* const place = FindAddress(size);
  const int flags = MAP_NORESERVE |
                    (file.open() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) |
                    (place == nullptr ? 0 : MAP_FIXED);
  void* base = mmap(place, size, PROT_READ | PROT_WRITE, flags, file.get(), 0);
  if (base == MAP_FAILED) {
    absl::Status error = OutOfMemory("mmap", size);
    if (place != nullptr) munmap(place, size);
    return error;
  }
  return SharedMemory(base, size, std::move(file));
}

absl::StatusOr<SharedMemory> SharedMemory::CreatePrivate(int64_t size) {
  return Map(OwnedFd(), size);
}

absl::StatusOr<SharedMemory> SharedMemory::Create(int64_t size) {
  OwnedFd file(memfd_create("lockstep", MFD_CLOEXEC));
  if (!file.open()) return OutOfMemory("memfd_create", size);
  const FileSizeSignalBlock block;  // The memory counts as a file.
  if (ftruncate(file.get(), size) != 0) return OutOfMemory("ftruncate", size);
  return Map(std::move(file), size);
}

absl::StatusOr<SharedMemory> SharedMemory::Open(const std::string& path) {
  OwnedFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.open()) {
    return absl::UnavailableError(absl::StrCat(
        "cannot open the group's memory ", path, ": ", std::strerror(errno)));
  }
  struct stat info;
  if (fstat(file.get(), &info) != 0 || info.st_size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a group's memory"));
  }
  return Map(std::move(file), info.st_size);
}

std::string SharedMemory::path() const {
  if (!file_.open()) return "";
  return absl::StrCat("/proc/", getpid(), "/fd/", file_.get());
}

void SharedMemory::Discard(int64_t offset, int64_t size) {
  // Another call frees the pages of memory without a file.
  if (madvise(data() + offset, size, MADV_REMOVE) != 0) {
    madvise(data() + offset, size, MADV_DONTNEED);
  }
}

void TouchPages(std::span<std::byte> memory) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t page = begin / kPageBytes * kPageBytes;
  madvise(reinterpret_cast<void*>(page), begin + memory.size() - page,
          kPopulateWrite);
}

void ExpectHugePages(std::span<std::byte> memory) {
  madvise(memory.data(), memory.size(), MADV_HUGEPAGE);
}

void UseHugePages(std::span<std::byte> memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  std::byte* const begin = memory.data() + (-address & (kHugePageBytes - 1));
  std::byte* const end = memory.data() + memory.size();
  std::byte* page = begin;
  // The kernel does not collapse a range that has no mapped page.
  for (; end - page >= kHugePageBytes; page += kHugePageBytes) {
    madvise(page, kPageBytes, kPopulateWrite);
  }
  // One call for all pages, because each call waits for every core.
  if (page > begin) madvise(begin, page - begin, kCollapse);
}

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

void SharedRegion::Locate(const RegionShape& shape) {
  controls_ = reinterpret_cast<RankControl*>(memory_.data() + ControlsBegin());
  staged_ = memory_.data() + StagedBegin(shape);
}

void SharedRegion::Construct(const RegionShape& shape) {
  Locate(shape);
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

absl::StatusOr<SharedRegion> SharedRegion::Create(const RegionShape& shape,
                                                  bool shareable) {
  LOCKSTEP_RETURN_IF_ERROR(CheckShape(shape));
  const int64_t bytes = RegionBytes(shape);
  LOCKSTEP_ASSIGN_OR_RETURN(SharedMemory memory,
                            shareable ? SharedMemory::Create(bytes)
                                      : SharedMemory::CreatePrivate(bytes));
  SharedRegion region(std::move(memory));
  region.Construct(shape);
  region.handed_over_.resize(static_cast<size_t>(shape.world_size));
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
  region.Locate(region.shape());
  return region;
}

Mailbox& SharedRegion::mailbox(int from, int to) const {
  return reinterpret_cast<Mailbox*>(
      memory_.data() + MailboxesBegin(shape()))[from * shape().world_size + to];
}

std::span<std::byte> SharedRegion::slot(int from, int to,
                                        uint64_t piece) const {
  const int64_t mailbox = int64_t{from} * shape().world_size + to;
  const int64_t index = mailbox * kSlotsPerMailbox +
                        static_cast<int64_t>(piece % kSlotsPerMailbox);
  return {memory_.data() + SlotsBegin(shape()) + index * shape().slot_bytes,
          static_cast<size_t>(shape().slot_bytes)};
}

std::span<std::byte> SharedRegion::pieces(int rank) const {
  const auto bytes = static_cast<size_t>(PiecesBytes(shape()));
  return all_pieces().subspan(static_cast<size_t>(rank) * bytes, bytes);
}

std::span<std::byte> SharedRegion::all_pieces() const {
  const int64_t bytes = shape().world_size * PiecesBytes(shape());
  return {memory_.data() + PiecesBegin(shape()), static_cast<size_t>(bytes)};
}

}  // namespace lockstep
