// Uses POSIX calls, since C++ streams do not report the cause of an error.
#include "base/files.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <limits>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lockstep {
namespace {

absl::Status FileError(const std::string& path, absl::string_view what) {
  const int error = errno;
  if (error == EFBIG) {  // ErrnoToStatus would return kOutOfRange.
    return absl::ResourceExhaustedError(absl::StrCat(
        path, ": cannot ", what, ": beyond the file size limit (ulimit -f)"));
  }
  return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot ", what));
}

absl::Status TooLarge(const std::string& path, absl::string_view size,
                      int64_t most) {
  return absl::DataLossError(
      absl::StrCat(path, ": has ", size, " bytes; at most ", most));
}

// Reads `file` from its current position to its end. The size that the system
// reports is not used: the file may grow meanwhile, and files in /proc report
// 0.
absl::StatusOr<std::string> ReadToEnd(const OwnedFd& file,
                                      const std::string& path, int64_t most) {
  std::string bytes;
  std::vector<char> block(1 << 16);
  while (true) {
    const ssize_t got = read(file.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(path, "read");
    if (got == 0) return bytes;
    bytes.append(block.data(), static_cast<size_t>(got));
    if (static_cast<int64_t>(bytes.size()) > most) {
      return TooLarge(path, "too many", most);
    }
  }
}

absl::Status WriteDurably(const std::string& path, absl::string_view bytes) {
  const FileSizeSignalBlock block;
  const OwnedFd file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.open()) return FileError(path, "create");
  while (!bytes.empty()) {
    const ssize_t written = write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(path, "write");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  if (fsync(file.get()) != 0) return FileError(path, "write");
  return absl::OkStatus();
}

std::string PartialOf(const std::string& path) {
  return absl::StrCat(path, ".partial");
}

// Creates the folder if it does not exist, and reads its attributes. It reads
// them even after creating the folder: another user may own the parent folder
// and may have put something else in its place. On failure errno says why.
bool CreateFolder(const std::string& path, struct stat& info) {
  // In each attempt, another process that leaves may remove the folder between
  // the two calls.
  constexpr int kAttempts = 1000;
  for (int i = 0; i < kAttempts; ++i) {
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return false;
    if (lstat(path.c_str(), &info) == 0) return true;
    if (errno != ENOENT) return false;
  }
  return false;
}

sigset_t FileSizeSignal() {
  sigset_t signal;
  sigemptyset(&signal);
  sigaddset(&signal, SIGXFSZ);
  return signal;
}

}  // namespace

FileSizeSignalBlock::FileSizeSignalBlock() {
  sigset_t pending;
  sigpending(&pending);
  was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
  const sigset_t signal = FileSizeSignal();
  pthread_sigmask(SIG_BLOCK, &signal, &old_mask_);
}

FileSizeSignalBlock::~FileSizeSignalBlock() {
  const int error = errno;
  const sigset_t signal = FileSizeSignal();
  const timespec at_once = {};
  while (!was_pending_ && sigtimedwait(&signal, nullptr, &at_once) < 0 &&
         errno == EINTR) {
  }
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  errno = error;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.open()) return FileError(path, "open");
  return ReadToEnd(file, path, std::numeric_limits<int64_t>::max());
}

absl::StatusOr<std::string> ReadForeignFile(const std::string& path,
                                            int64_t most) {
  // Checks the type of the file before opening it, too: opening a socket fails
  // with a message that explains nothing, and opening a device may have an
  // effect.
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return FileError(path, "open");
  const auto not_regular = [&] {
    return absl::DataLossError(absl::StrCat(path, ": is not a regular file"));
  };
  if (!S_ISREG(info.st_mode)) return not_regular();
  const OwnedFd file(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.open()) return FileError(path, "open");
  if (fstat(file.get(), &info) != 0) return FileError(path, "read");
  if (!S_ISREG(info.st_mode)) return not_regular();
  if (info.st_size > most) {
    return TooLarge(path, absl::StrCat(info.st_size), most);
  }
  return ReadToEnd(file, path, most);
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

absl::StatusOr<TemporaryFolder> TemporaryFolder::Create(
    absl::string_view name, absl::string_view below) {
  const char* const tmpdir = std::getenv("TMPDIR");
  std::string folder(below);
  if (folder.empty() && tmpdir != nullptr) folder = tmpdir;
  if (folder.empty()) folder = "/tmp";
  // If the path is not a folder, the error names only the path.
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return absl::UnavailableError(absl::StrCat(
        "there is no folder for temporary files (TMPDIR): ", folder));
  }
  std::string path =
      std::filesystem::path(folder) / absl::StrCat(name, "-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot create the folder ", path));
  }
  return TemporaryFolder(std::move(path), /*shared=*/false);
}

absl::StatusOr<TemporaryFolder> TemporaryFolder::OpenShared(
    const std::string& path) {
  struct stat info;
  if (!CreateFolder(path, info)) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot create the folder ", path));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() ||
      (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " is not a folder of this user's alone"));
  }
  return TemporaryFolder(path, /*shared=*/true);
}

TemporaryFolder::~TemporaryFolder() {
  if (path_.empty()) return;
  if (shared_) {
    rmdir(path_.c_str());
    return;
  }
  std::error_code ignored;  // A destructor cannot report an error.
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace lockstep
