// Files: descriptors that close themselves, files that are read and replaced as
// a whole, and folders that last no longer than a run.
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

// While an object of this class lives, writes of its thread beyond the
// process's file size limit (RLIMIT_FSIZE, ulimit -f) fail with EFBIG. Without
// the object, such a write raises SIGXFSZ, which by default ends the process
// without naming the file. Other threads are not affected: the kernel signals
// the thread that writes. The thread that made the object must destroy it. The
// destructor keeps errno.
class FileSizeSignalBlock {
 public:
  FileSizeSignalBlock();
  FileSizeSignalBlock(const FileSizeSignalBlock&) = delete;
  FileSizeSignalBlock& operator=(const FileSizeSignalBlock&) = delete;
  ~FileSizeSignalBlock();

 private:
  sigset_t old_mask_;
  bool was_pending_;  // Whether SIGXFSZ was pending before; it then stays so.
};

// Returns the file's bytes. Errors: the file system's, with the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Returns the bytes of the regular file at `path`, or at the end of a link
// there. Another program may have put anything at the path. Never waits for a
// writer, as opening a pipe would. Errors, all with the path: kDataLoss if the
// file is not a regular file or has more than `most` bytes; kNotFound and
// others from the file system.
absl::StatusOr<std::string> ReadForeignFile(const std::string& path,
                                            int64_t most);

// Writes a file. Replaces an old file only once the new one is complete and on
// the disk, so a reader sees either the old file or the new one. Until then the
// new file is at `path` + ".partial"; an error removes the partial file.
// Errors: the file system's, with the path; kResourceExhausted for a file
// beyond the process's size limit.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes);

// Checks whether ReplaceFile can begin. Returns its error if `path` is a
// folder, or if nothing can be created beside `path`. Leaves no new file and
// does not change an old one.
absl::Status CheckReplaceable(const std::string& path);

// A folder that only this user can access (mode 0700). It lasts no longer than
// a run.
class TemporaryFolder {
 public:
  // Creates a folder whose name begins with `name` and "-", in the folder
  // `below`. The default for `below` is TMPDIR, or /tmp if TMPDIR is empty or
  // not set. The destructor removes the folder and everything in it. Errors:
  // kUnavailable, naming TMPDIR, if there is no such folder; the file system's,
  // with the path.
  static absl::StatusOr<TemporaryFolder> Create(absl::string_view name,
                                                absl::string_view below = "");

  // Opens the folder at `path`, which all processes that open the same path
  // share. Creates the folder if it is absent. The destructor removes the
  // folder if it is empty, so the last process to leave removes it. Errors:
  // kPermissionDenied if the path is not a folder, or belongs to another user,
  // or gives access to others; the file system's; all with the path.
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
