// open, fstat, read.
#include "conformance/protocol/foreign_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
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

}  // namespace lockstep
