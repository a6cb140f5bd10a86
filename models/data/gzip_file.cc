// zlib's gz functions behind Status.
#include "models/data/gzip_file.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

// gzread's sizes are unsigned int and its results int.
constexpr size_t kMaxRead = size_t{1} << 30;
constexpr unsigned kBufferBytes = 1 << 18;

gzFile AsGzFile(void* file) { return static_cast<gzFile>(file); }

}  // namespace

void GzipFile::Closer::operator()(void* file) const { gzclose(AsGzFile(file)); }

absl::StatusOr<GzipFile> GzipFile::Open(const std::string& path) {
  // Before opening, since opening a pipe would wait for its writer.
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, S_ISDIR(info.st_mode) ? ": is a directory, not a file"
                                    : ": is not a regular file"));
  }
  errno = 0;  // gzopen leaves it alone where memory is what it lacks.
  const gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) {
    return absl::ErrnoToStatus(errno != 0 ? errno : ENOMEM, path);
  }
  gzbuffer(file, kBufferBytes);
  return GzipFile(path, file);
}

absl::StatusOr<int64_t> GzipFile::Read(std::span<uint8_t> out) {
  int64_t total = 0;
  while (!out.empty()) {
    const auto wanted = static_cast<unsigned>(std::min(out.size(), kMaxRead));
    const int count = gzread(AsGzFile(file_.get()), out.data(), wanted);
    // A stream that is cut off is an error state beside a count of bytes.
    LOCKSTEP_RETURN_IF_ERROR(Fault());
    if (count <= 0) break;
    total += count;
    out = out.subspan(static_cast<size_t>(count));
  }
  return total;
}

absl::Status GzipFile::Fault() const {
  int code = Z_OK;
  const int system_error = errno;
  const char* const what = gzerror(AsGzFile(file_.get()), &code);
  switch (code) {
    case Z_OK:
    case Z_STREAM_END:
      return absl::OkStatus();
    case Z_ERRNO:
      return absl::ErrnoToStatus(system_error, path_);
    case Z_BUF_ERROR:
      return absl::DataLossError(
          absl::StrCat(path_, ": truncated: its gzip data ends too early"));
    case Z_MEM_ERROR:
      return absl::ResourceExhaustedError(
          absl::StrCat(path_, ": out of memory while decompressing"));
    default:
      return absl::DataLossError(
          absl::StrCat(path_, ": its gzip data is damaged (", what, ")"));
  }
}

}  // namespace lockstep
