#include "models/data/idx.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

// gzread takes unsigned int sizes and returns int.
constexpr size_t kMaxRead = size_t{1} << 30;
constexpr unsigned kBufferBytes = 1 << 18;

constexpr uint8_t kUnsignedByte = 0x08;
constexpr int kLabelsRank = 1;
constexpr int kImagesRank = 3;
// No data set of bytes in one file is that large, so a larger size in a header
// is an error.
constexpr int64_t kMaxPayload = int64_t{1} << 40;
constexpr int64_t kFirstChunk = int64_t{1} << 20;

// A sequential reader of a regular file's content, which is decompressed if it
// is gzip. Errors begin with the path.
class GzipFile {
 public:
  static absl::StatusOr<GzipFile> Open(const std::string& path) {
    // Checked before opening, since opening a pipe would wait for its writer.
    struct stat info;
    if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
    if (!S_ISREG(info.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, S_ISDIR(info.st_mode) ? ": is a directory, not a file"
                                      : ": is not a regular file"));
    }
    errno = 0;  // gzopen leaves errno at 0 if memory runs out.
    const gzFile file = gzopen(path.c_str(), "rb");
    if (file == nullptr) {
      return absl::ErrnoToStatus(errno != 0 ? errno : ENOMEM, path);
    }
    gzbuffer(file, kBufferBytes);
    return GzipFile(path, file);
  }

  // Reads up to out.size() bytes and returns their number, which is smaller
  // only at the end of the content, and 0 after it. Read until 0: the read that
  // meets the end also verifies the checksum at the end of gzip's data.
  absl::StatusOr<int64_t> Read(std::span<uint8_t> out) {
    int64_t total = 0;
    while (!out.empty()) {
      const auto wanted = static_cast<unsigned>(std::min(out.size(), kMaxRead));
      const int count = gzread(file_.get(), out.data(), wanted);
      // At a truncated stream, gzread sets an error state but also returns a
      // count.
      LOCKSTEP_RETURN_IF_ERROR(CurrentError());
      if (count <= 0) break;
      total += count;
      out = out.subspan(static_cast<size_t>(count));
    }
    return total;
  }

 private:
  struct Closer {
    void operator()(gzFile file) const { gzclose(file); }
  };

  GzipFile(const std::string& path, gzFile file) : path_(path), file_(file) {}

  // Returns zlib's error for the file, or OK.
  absl::Status CurrentError() const {
    int code = Z_OK;
    const int system_error = errno;
    const char* const what = gzerror(file_.get(), &code);
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
        return absl::DataLossError(absl::StrCat(
            path_, ": its gzip data is damaged (",
            absl::StripPrefix(what, absl::StrCat(path_, ": ")), ")"));
    }
  }

  std::string path_;
  std::unique_ptr<gzFile_s, Closer> file_;
};

std::string RankName(int rank) {
  if (rank == kLabelsRank) return "labels (1 dimension)";
  if (rank == kImagesRank) return "images (3 dimensions)";
  return absl::StrCat("values of ", rank, " dimensions");
}

absl::Status Truncated(const std::string& name, const std::string& part,
                       int64_t expected, int64_t got) {
  return absl::DataLossError(absl::StrCat(name, ": truncated: its ", part,
                                          " needs ", expected, " bytes, got ",
                                          got));
}

absl::Status CheckMagic(const std::string& name, std::span<const uint8_t> magic,
                        int rank) {
  if (magic[0] != 0 || magic[1] != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": neither IDX nor gzip: it starts with bytes 0x",
                     absl::Hex(magic[0], absl::kZeroPad2), " 0x",
                     absl::Hex(magic[1], absl::kZeroPad2)));
  }
  if (magic[2] != kUnsignedByte) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": IDX type is 0x", absl::Hex(magic[2], absl::kZeroPad2),
        ", must be 0x08 (unsigned byte)"));
  }
  if (magic[3] != rank) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": holds ", RankName(magic[3]), ", must hold ", RankName(rank)));
  }
  return absl::OkStatus();
}

// Returns the product of the dimensions, checked against the limits.
absl::StatusOr<int64_t> PayloadSize(const std::string& name,
                                    std::span<const int64_t> dimensions) {
  int64_t size = 1;
  for (const int64_t dimension : dimensions) {
    if (dimension == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": holds nothing: its dimensions are ",
                       absl::StrJoin(dimensions, " x ")));
    }
    if (size > kMaxPayload / dimension) {
      return absl::DataLossError(absl::StrCat(name, ": its dimensions ",
                                              absl::StrJoin(dimensions, " x "),
                                              " are over 2^40 bytes"));
    }
    size *= dimension;
  }
  return size;
}

// Reads the dimensions of an IDX file of unsigned bytes of the given rank.
absl::StatusOr<std::vector<int64_t>> ReadHeader(const std::string& name,
                                                int rank, GzipFile& file) {
  std::array<uint8_t, 4 + 4 * kImagesRank> header;
  const std::span<uint8_t> bytes = std::span(header).first(4 + 4 * rank);
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t got, file.Read(bytes));
  if (got == 0) {
    return absl::DataLossError(absl::StrCat(name, ": is empty"));
  }
  if (got >= 4) LOCKSTEP_RETURN_IF_ERROR(CheckMagic(name, bytes, rank));
  if (got < static_cast<int64_t>(bytes.size())) {
    return Truncated(name, "header", bytes.size(), got);
  }
  std::vector<int64_t> dimensions;
  for (int d = 1; d <= rank; ++d) {
    const uint8_t* const b = bytes.data() + 4 * d;
    dimensions.push_back(int64_t{b[0]} << 24 | b[1] << 16 | b[2] << 8 | b[3]);
  }
  return dimensions;
}

// Reads exactly `size` bytes and then the end of the file. A header may claim
// any size, so the buffer only doubles as bytes arrive.
absl::StatusOr<std::vector<uint8_t>> ReadPayload(const std::string& name,
                                                 int64_t size, GzipFile& file) {
  std::vector<uint8_t> payload;
  while (static_cast<int64_t>(payload.size()) < size) {
    const auto before = static_cast<int64_t>(payload.size());
    const int64_t chunk =
        std::min(size - before, std::max(before, kFirstChunk));
    payload.resize(before + chunk);
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t got,
                              file.Read(std::span(payload).subspan(before)));
    if (got < chunk) return Truncated(name, "data", size, before + got);
  }
  uint8_t beyond;
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t got, file.Read({&beyond, 1}));
  if (got != 0) {
    return absl::DataLossError(
        absl::StrCat(name, ": too long: bytes follow the ", size,
                     " bytes of data that its header declares"));
  }
  return payload;
}

// Returns the values of a file of the given rank, and sets `dimensions`.
absl::StatusOr<std::vector<uint8_t>> ReadIdx(const std::string& path, int rank,
                                             std::vector<int64_t>& dimensions) {
  LOCKSTEP_ASSIGN_OR_RETURN(GzipFile file, GzipFile::Open(path));
  LOCKSTEP_ASSIGN_OR_RETURN(dimensions, ReadHeader(path, rank, file));
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t size, PayloadSize(path, dimensions));
  return ReadPayload(path, size, file);
}

}  // namespace

absl::StatusOr<IdxImages> ReadIdxImages(const std::string& path) {
  std::vector<int64_t> dimensions;
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<uint8_t> pixels,
                            ReadIdx(path, kImagesRank, dimensions));
  return IdxImages{dimensions[0], dimensions[1], dimensions[2],
                   std::move(pixels)};
}

absl::StatusOr<std::vector<uint8_t>> ReadIdxLabels(const std::string& path) {
  std::vector<int64_t> dimensions;
  return ReadIdx(path, kLabelsRank, dimensions);
}

}  // namespace lockstep
