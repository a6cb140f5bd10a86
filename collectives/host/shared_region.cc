#include "collectives/host/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
#include "base/status_macros.h"
#include "collectives/group_options.h"

namespace lockstep {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free,
              "Processes cannot share a lock");

constexpr uint64_t kMagic = 0x4c6f636b73746570;  // "Lockstep".
constexpr int64_t kPage = 4096;
constexpr int64_t kMaxSlotBytes = 16 << 20;

int64_t ControlsBegin() {
  return (sizeof(RegionHeader) + kCacheLinePair - 1) / kCacheLinePair *
         kCacheLinePair;
}

int64_t MailboxesBegin(const RegionShape& shape) {
  return ControlsBegin() + shape.world_size * int64_t{sizeof(RankControl)};
}

int64_t SlotsBegin(const RegionShape& shape) {
  const int64_t pairs = int64_t{shape.world_size} * shape.world_size;
  const int64_t end = MailboxesBegin(shape) + pairs * int64_t{sizeof(Mailbox)};
  return (end + kPage - 1) / kPage * kPage;
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

absl::Status OutOfMemory(const char* call, int64_t size) {
  return absl::ResourceExhaustedError(
      absl::StrCat(call, " of ", size,
                   " bytes shared by the ranks: ", std::strerror(errno)));
}

}  // namespace

SharedRegion::SharedRegion(void* base, int64_t size, int fd)
    : base_(static_cast<std::byte*>(base)), size_(size), fd_(fd) {}

SharedRegion::SharedRegion(SharedRegion&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      size_(other.size_),
      fd_(std::exchange(other.fd_, -1)) {}

SharedRegion& SharedRegion::operator=(SharedRegion&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

SharedRegion::~SharedRegion() {
  CloseFile();
  if (base_ != nullptr) munmap(base_, size_);
}

absl::StatusOr<SharedRegion> SharedRegion::Map(int fd, int64_t size) {
  // Address space alone is reserved; pages come when touched.
  const int flags =
      MAP_NORESERVE | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (base == MAP_FAILED) {
    absl::Status status = OutOfMemory("mmap", size);
    if (fd >= 0) close(fd);
    return status;
  }
  return SharedRegion(base, size, fd);
}

void SharedRegion::Construct(const RegionShape& shape) {
  auto* header = new (base_) RegionHeader();
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
  LOCKSTEP_ASSIGN_OR_RETURN(SharedRegion region, Map(-1, RegionBytes(shape)));
  region.Construct(shape);
  return region;
}

absl::StatusOr<SharedRegion> SharedRegion::CreateShareable(
    const RegionShape& shape) {
  LOCKSTEP_RETURN_IF_ERROR(CheckShape(shape));
  const int64_t size = RegionBytes(shape);
  const int fd = memfd_create("lockstep", MFD_CLOEXEC);
  if (fd < 0) return OutOfMemory("memfd_create", size);
  if (ftruncate(fd, size) != 0) {
    absl::Status status = OutOfMemory("ftruncate", size);
    close(fd);
    return status;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(SharedRegion region, Map(fd, size));
  region.Construct(shape);
  return region;
}

absl::StatusOr<SharedRegion> SharedRegion::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot open the group's memory ", path, ": ", std::strerror(errno)));
  }
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size < SlotsBegin({1, 64})) {
    close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a group's memory"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(SharedRegion region, Map(fd, info.st_size));
  if (region.header().magic != kMagic || !CheckShape(region.shape()).ok() ||
      RegionBytes(region.shape()) != info.st_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a group's memory"));
  }
  region.CloseFile();
  return region;
}

std::string SharedRegion::path() const {
  if (fd_ < 0) return "";
  return absl::StrCat("/proc/", getpid(), "/fd/", fd_);
}

void SharedRegion::CloseFile() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

RegionHeader& SharedRegion::header() const {
  return *reinterpret_cast<RegionHeader*>(base_);
}

RankControl& SharedRegion::control(int rank) const {
  return reinterpret_cast<RankControl*>(base_ + ControlsBegin())[rank];
}

Mailbox& SharedRegion::mailbox(int from, int to) const {
  return reinterpret_cast<Mailbox*>(
      base_ + MailboxesBegin(shape()))[from * shape().world_size + to];
}

std::span<std::byte> SharedRegion::slot(int from, int to,
                                        uint64_t piece) const {
  const int64_t mailbox = int64_t{from} * shape().world_size + to;
  const int64_t index = mailbox * kSlotsPerMailbox +
                        static_cast<int64_t>(piece % kSlotsPerMailbox);
  return {base_ + SlotsBegin(shape()) + index * shape().slot_bytes,
          static_cast<size_t>(shape().slot_bytes)};
}

}  // namespace lockstep
