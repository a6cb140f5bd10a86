#include "collectives/host/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

absl::Status OutOfMemory(const char* call, int64_t size) {
  return absl::ResourceExhaustedError(
      absl::StrCat(call, " of ", size,
                   " bytes shared by the ranks: ", std::strerror(errno)));
}

}  // namespace

SharedMemory::SharedMemory(void* base, int64_t size, int fd)
    : base_(static_cast<std::byte*>(base)), size_(size), fd_(fd) {}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      size_(other.size_),
      fd_(std::exchange(other.fd_, -1)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

SharedMemory::~SharedMemory() {
  CloseFile();
  if (base_ != nullptr) munmap(base_, size_);
}

absl::StatusOr<SharedMemory> SharedMemory::Map(int fd, int64_t size) {
  const int flags =
      MAP_NORESERVE | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (base == MAP_FAILED) {
    absl::Status status = OutOfMemory("mmap", size);
    if (fd >= 0) close(fd);
    return status;
  }
  return SharedMemory(base, size, fd);
}

absl::StatusOr<SharedMemory> SharedMemory::CreatePrivate(int64_t size) {
  return Map(-1, size);
}

absl::StatusOr<SharedMemory> SharedMemory::Create(int64_t size) {
  const int fd = memfd_create("lockstep", MFD_CLOEXEC);
  if (fd < 0) return OutOfMemory("memfd_create", size);
  if (ftruncate(fd, size) != 0) {
    absl::Status status = OutOfMemory("ftruncate", size);
    close(fd);
    return status;
  }
  return Map(fd, size);
}

absl::StatusOr<SharedMemory> SharedMemory::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot open the group's memory ", path, ": ", std::strerror(errno)));
  }
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size == 0) {
    close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a group's memory"));
  }
  return Map(fd, info.st_size);
}

std::string SharedMemory::path() const {
  if (fd_ < 0) return "";
  return absl::StrCat("/proc/", getpid(), "/fd/", fd_);
}

void SharedMemory::CloseFile() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void SharedMemory::Discard(int64_t offset, int64_t size) {
  // Of memory without a file, pages are freed by another call.
  if (madvise(base_ + offset, size, MADV_REMOVE) != 0) {
    madvise(base_ + offset, size, MADV_DONTNEED);
  }
}

}  // namespace lockstep
