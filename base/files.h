// A file descriptor that closes itself.
#ifndef LOCKSTEP_BASE_FILES_H_
#define LOCKSTEP_BASE_FILES_H_

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

// Whole files, read and replaced.

// The file's bytes. Errors: the file system's, with the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Writes a file, replacing an old one only once the new one is complete and on
// the disk, so a reader sees one or the other; until then the new one is at
// `path` + ".partial". Errors: the file system's, with the path.
absl::Status ReplaceFile(const std::string& path, absl::string_view bytes);

// Whether ReplaceFile can begin: its error where `path` is a folder, or nothing
// can be created beside it. Leaves no file, and an old one as it is.
absl::Status CheckReplaceable(const std::string& path);

// Files that somebody else's program wrote, or something else in their place.

// The bytes of the regular file at `path`, which may be a link to it. Never
// waits for a writer, as opening a pipe would. Errors, all with the path:
// kDataLoss if it is no regular file or has more than `most` bytes; kNotFound
// and the like from the file system.
absl::StatusOr<std::string> ReadForeignFile(const std::string& path,
                                            int64_t most);

// A folder for what lasts no longer than a run.

// Below TMPDIR, or /tmp if that is empty or not set, for this user alone;
// removed with all that is in it when this object goes.
class TemporaryFolder {
 public:
  // A new one, whose name begins with `name`, and "-" after it.
  // Errors: the file system's, with the path.
  static absl::StatusOr<TemporaryFolder> Create(absl::string_view name);

  TemporaryFolder(TemporaryFolder&& other) noexcept
      : path_(std::exchange(other.path_, "")) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;  // "" after a move.
};

// A folder for one run, among those of all users.

// A folder that only this user can read or write, shared by the processes that
// open the same path. Destruction removes it if it is empty, so the last to go
// does.
class PrivateDirectory {
 public:
  // Creates the folder, mode 0700, if it is absent. Errors: kPermissionDenied
  // if what is there is no folder, or another user's, or open to others; the
  // file system's; all with the path.
  static absl::StatusOr<PrivateDirectory> Open(const std::string& path);

  PrivateDirectory(PrivateDirectory&& other) noexcept;
  PrivateDirectory& operator=(PrivateDirectory&& other) noexcept;
  ~PrivateDirectory();

  const std::string& path() const { return path_; }

 private:
  explicit PrivateDirectory(std::string path);

  std::string path_;  // "" after a move.
};

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_FILES_H_
