// POSIX calls, since streams do not say what went wrong.
#include "models/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
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

}  // namespace lockstep
