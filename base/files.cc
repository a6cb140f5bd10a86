// POSIX calls, since streams do not say what went wrong.
#include "base/files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep {
namespace {

absl::Status FileError(const std::string& path, absl::string_view what) {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot ", what));
}

absl::Status WriteDurably(const std::string& path, absl::string_view bytes) {
  const int file =
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return FileError(path, "create");
  absl::Cleanup close_file = [file] { close(file); };
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(path, "write");
    bytes.remove_prefix(written);
  }
  if (fsync(file) != 0) return FileError(path, "write");
  return absl::OkStatus();
}

std::string PartialOf(const std::string& path) {
  return absl::StrCat(path, ".partial");
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return FileError(path, "open");
  absl::Cleanup close_file = [file] { close(file); };
  std::string bytes;
  std::vector<char> block(1 << 16);
  while (true) {
    const ssize_t got = read(file, block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(path, "read");
    if (got == 0) return bytes;
    bytes.append(block.data(), got);
  }
}

absl::Status ReplaceFile(const std::string& path, absl::string_view bytes) {
  const std::string partial = PartialOf(path);
  absl::Status status = WriteDurably(partial, bytes);
  if (status.ok() && std::rename(partial.c_str(), path.c_str()) != 0) {
    status = FileError(path, "replace");
  }
  if (!status.ok()) unlink(partial.c_str());
  return status;
}

absl::Status CheckReplaceable(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    errno = EISDIR;
    return FileError(path, "replace");
  }
  const std::string partial = PartialOf(path);
  const absl::Status status = WriteDurably(partial, "");
  unlink(partial.c_str());
  return status;
}

// open, fstat, read.
namespace {

absl::Status FileError(const std::string& path, absl::string_view what) {
  const int error = errno;
  return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot ", what));
}

}  // namespace

absl::StatusOr<std::string> ReadForeignFile(const std::string& path,
                                            int64_t most) {
  // What is there is looked at before it is opened too: to open a socket fails
  // with a message that tells nothing, and to open a device may do something.
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return FileError(path, "open");
  const auto not_regular = [&] {
    return absl::DataLossError(absl::StrCat(path, ": is not a regular file"));
  };
  if (!S_ISREG(info.st_mode)) return not_regular();
  const int file =
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return FileError(path, "open");
  absl::Cleanup close_file = [file] { close(file); };
  if (fstat(file, &info) != 0) return FileError(path, "read");
  if (!S_ISREG(info.st_mode)) return not_regular();
  const auto too_large = [&](absl::string_view size) {
    return absl::DataLossError(
        absl::StrCat(path, ": has ", size, " bytes; at most ", most));
  };
  if (info.st_size > most) return too_large(absl::StrCat(info.st_size));
  std::string bytes;
  bytes.reserve(static_cast<size_t>(info.st_size));
  std::vector<char> block(1 << 16);
  while (true) {
    const ssize_t got = read(file, block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(path, "read");
    if (got == 0) return bytes;
    bytes.append(block.data(), got);
    // The file has grown, or its size is no size, as in /proc.
    if (static_cast<int64_t>(bytes.size()) > most) return too_large("too many");
  }
}

// mkdtemp() and its undoing.

absl::StatusOr<TemporaryFolder> TemporaryFolder::Create(
    absl::string_view name) {
  const char* const tmpdir = std::getenv("TMPDIR");
  const std::filesystem::path below =
      tmpdir != nullptr && *tmpdir != '\0' ? tmpdir : "/tmp";
  std::error_code error;  // Of what is no folder, the path says enough.
  if (!std::filesystem::is_directory(below, error)) {
    return absl::UnavailableError(absl::StrCat(
        "no folder for temporary files (TMPDIR): ", below.string()));
  }
  std::string path = below / absl::StrCat(name, "-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, path);
  }
  return TemporaryFolder(std::move(path));
}

TemporaryFolder::~TemporaryFolder() {
  if (path_.empty()) return;
  std::error_code ignored;  // Nobody is there to tell.
  std::filesystem::remove_all(path_, ignored);
}

// mkdir, lstat, rmdir.
namespace {

// Looks at the folder also when it was created just now: another user may own
// the folder above and have put something else in its place. On failure errno
// says why.
bool Create(const std::string& path, struct stat& info) {
  // Who leaves may remove the folder between the two calls, each time.
  constexpr int kAttempts = 1000;
  for (int i = 0; i < kAttempts; ++i) {
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return false;
    if (lstat(path.c_str(), &info) == 0) return true;
    if (errno != ENOENT) return false;
  }
  return false;
}

}  // namespace

absl::StatusOr<PrivateDirectory> PrivateDirectory::Open(
    const std::string& path) {
  struct stat info;
  if (!Create(path, info)) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot create the folder ", path));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() ||
      (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " is not a folder of this user's alone"));
  }
  return PrivateDirectory(path);
}

PrivateDirectory::PrivateDirectory(std::string path) : path_(std::move(path)) {}

PrivateDirectory::PrivateDirectory(PrivateDirectory&& other) noexcept
    : path_(std::exchange(other.path_, std::string())) {}

PrivateDirectory& PrivateDirectory::operator=(
    PrivateDirectory&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

PrivateDirectory::~PrivateDirectory() {
  if (!path_.empty()) rmdir(path_.c_str());
}

}  // namespace lockstep
