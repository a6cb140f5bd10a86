// Memory that processes of one host share without a name in the file system.
#ifndef LOCKSTEP_COLLECTIVES_HOST_SHARED_MEMORY_H_
#define LOCKSTEP_COLLECTIVES_HOST_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace lockstep {

inline constexpr int64_t kPageBytes = 4096;

// Owns one mapping, zero at first, aligned to a page. Only address space is
// reserved: pages come when touched, and go with the last mapping. Errors of
// all factories: kResourceExhausted without memory.
class SharedMemory {
 public:
  // For ranks that are threads: nobody else can open it.
  static absl::StatusOr<SharedMemory> CreatePrivate(int64_t size);

  // For processes: the others open `path()` while this process holds it.
  static absl::StatusOr<SharedMemory> Create(int64_t size);

  // Maps what Create made, whole. Errors: kUnavailable if it is gone.
  static absl::StatusOr<SharedMemory> Open(const std::string& path);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const { return base_; }
  int64_t size() const { return size_; }

  // "/proc/<pid>/fd/<n>", or empty after CloseFile or without a file.
  std::string path() const;
  // After this nobody else can open it.
  void CloseFile();

  // Gives the pages of [offset, offset + size), page boundaries, back to the
  // system, for every process; they read as zero after that.
  void Discard(int64_t offset, int64_t size);

 private:
  SharedMemory(void* base, int64_t size, int fd);
  static absl::StatusOr<SharedMemory> Map(int fd, int64_t size);

  std::byte* base_;
  int64_t size_;
  int fd_;  // -1: none.
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_HOST_SHARED_MEMORY_H_
