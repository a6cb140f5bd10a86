// Files: descriptors that close themselves, files that are read and replaced
// whole, and folders that last no longer than a run.
#ifndef LOCKSTEP_BASE_FILES_H_
#define LOCKSTEP_BASE_FILES_H_

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// Owns one descriptor, or none (-1). Not thread safe.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd() { Close(); }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

// While an object lives, its thread's writes beyond the process's file size
// limit (RLIMIT_FSIZE, ulimit -f) fail with EFBIG. Otherwise they raise
// SIGXFSZ, which by default ends the process without naming the file. Other
// threads are not affected: the kernel signals the thread that writes. Must be
// destroyed by the thread that made it; keeps errno.
class FileSizeSignalBlock {
 public:
  FileSizeSignalBlock();
  FileSizeSignalBlock(const FileSizeSignalBlock&) = delete;
  FileSizeSignalBlock& operator=(const FileSizeSignalBlock&) = delete;
  ~FileSizeSignalBlock();

 private:
  sigset_t old_mask_;
  bool was_pending_;  // A signal that is not this object's to discard.
};

// The file's bytes. Errors: the file system's, with the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// The bytes of the regular file at `path`, or at the end of a link there, where
// another program may have put anything. Never waits for a writer, as opening a
// pipe would. Errors, all with the path: kDataLoss if it is no regular file or
// has more than `most` bytes; kNotFound and the like from the file system.
absl::StatusOr<std::string> ReadForeignFile(const std::string& path,
                                            int64_t most);

// Writes a file, replacing an old one only once the new one is complete and on
// the disk, so a reader sees one or the other; until then the new one is at
// `path` + ".partial", which an error removes. Errors: the file system's, with
// the path; kResourceExhausted for a file beyond the process's size limit.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes);

// Whether ReplaceFile can begin: its error where `path` is a folder, or nothing
// can be created beside it. Leaves no file, and an old one as it is.
absl::Status CheckReplaceable(const std::string& path);

// A folder for this user alone (mode 0700) that lasts no longer than a run.
class TemporaryFolder {
 public:
  // A new one, whose name begins with `name` and "-", in the folder `below`: by
  // default TMPDIR, or /tmp if that is empty or not set. It is removed, with
  // all that is in it, when this object goes. Errors: kUnavailable, naming
  // TMPDIR, if there is no such folder; the file system's, with the path.
  static absl::StatusOr<TemporaryFolder> Create(absl::string_view name,
                                                absl::string_view below = "");

  // The folder at `path`, shared by the processes that open the same path;
  // created if it is absent. It is removed when this object goes if it is empty
  // then, so the last process to go removes it. Errors: kPermissionDenied if
  // what is there is no folder, or another user's, or open to others; the file
  // system's; all with the path.
  static absl::StatusOr<TemporaryFolder> OpenShared(const std::string& path);

  TemporaryFolder(TemporaryFolder&& other) noexcept
      : path_(std::exchange(other.path_, "")), shared_(other.shared_) {}
  TemporaryFolder& operator=(TemporaryFolder&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(shared_, other.shared_);
    return *this;
  }
  ~TemporaryFolder();

  const std::string& path() const { return path_; }

 private:
  TemporaryFolder(std::string path, bool shared)
      : path_(std::move(path)), shared_(shared) {}

  std::string path_;  // "" after a move.
  bool shared_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_FILES_H_
