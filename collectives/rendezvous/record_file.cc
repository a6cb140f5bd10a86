#include "collectives/rendezvous/record_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/fnv1a.h"
#include "collectives/rendezvous/rendezvous.h"

namespace lockstep {
namespace {

constexpr char kMagic[8] = {'L', 'S', 'T', 'E', 'P', 'R', 'V', '2'};

struct Header {
  char magic[8];
  uint64_t checksum;
  uint64_t token;
  uint64_t start_ticks;
  uint64_t written_ticks;
  uint64_t meeting;
  int32_t pid;
  int32_t rank;
  int32_t world_size;
  uint32_t round;
  uint32_t kind;
  uint32_t blob_size;
};
static_assert(sizeof(Header) == 72);

uint64_t Checksum(Header header, absl::string_view blob) {
  header.checksum = 0;
  return Fnv1a(blob, Fnv1a(std::as_bytes(std::span(&header, 1))));
}

bool IsPlausible(const Header& header) {
  return header.world_size >= 1 && header.world_size <= kLargestWorldSize &&
         header.rank >= 0 && header.rank < header.world_size &&
         header.meeting >= 1 && header.round >= 1 &&
         header.blob_size <= kMaxBlobBytes &&
         header.kind <= static_cast<uint32_t>(RecordKind::kLeave);
}

absl::Status Corrupt(size_t offset, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("byte ", offset, ": ", what));
}

RendezvousRecord Decode(const Header& header, absl::string_view blob) {
  return {.kind = static_cast<RecordKind>(header.kind),
          .meeting = header.meeting,
          .round = header.round,
          .rank = header.rank,
          .world_size = header.world_size,
          .writer = {header.pid, header.start_ticks},
          .token = header.token,
          .written_ticks = header.written_ticks,
          .blob = std::string(blob)};
}

// More than the longest record, so that each chunk makes progress.
constexpr size_t kChunkBytes = 1 << 20;

bool IsSameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

std::string Encode(const RendezvousRecord& record) {
  Header header = {
      .magic = {},
      .checksum = 0,
      .token = record.token,
      .start_ticks = record.writer.start_ticks,
      .written_ticks = record.written_ticks,
      .meeting = record.meeting,
      .pid = record.writer.pid,
      .rank = record.rank,
      .world_size = record.world_size,
      .round = record.round,
      .kind = static_cast<uint32_t>(record.kind),
      .blob_size = static_cast<uint32_t>(record.blob.size()),
  };
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.checksum = Checksum(header, record.blob);
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) +
         record.blob;
}

absl::StatusOr<ParsedRecords> ParseRecords(absl::string_view bytes) {
  ParsedRecords parsed;
  while (parsed.used < bytes.size()) {
    const absl::string_view rest = bytes.substr(parsed.used);
    if (std::memcmp(rest.data(), kMagic,
                    std::min(rest.size(), sizeof(kMagic))) != 0) {
      return Corrupt(parsed.used, "not a rendezvous record");
    }
    if (rest.size() < sizeof(Header)) break;
    Header header;
    std::memcpy(&header, rest.data(), sizeof(header));
    if (!IsPlausible(header)) {
      return Corrupt(parsed.used, "a rendezvous record with a wrong field");
    }
    if (rest.size() < sizeof(Header) + header.blob_size) break;
    const absl::string_view blob =
        rest.substr(sizeof(Header), header.blob_size);
    if (header.checksum != Checksum(header, blob)) {
      return Corrupt(parsed.used, "a rendezvous record with a wrong checksum");
    }
    parsed.records.push_back(Decode(header, blob));
    parsed.used += sizeof(Header) + header.blob_size;
  }
  return parsed;
}

absl::StatusOr<RecordFile> RecordFile::Open(const std::string& path) {
  // O_NONBLOCK, since opening a named pipe could block; pipes are rejected
  // below.
  const int flags = O_RDWR | O_CLOEXEC | O_NONBLOCK;
  RecordFile file(path, OwnedFd(open(path.c_str(), flags | O_CREAT, 0600)));
  if (!file.file_.open()) return file.SystemError("open");
  struct stat info;
  if (fstat(file.file_.get(), &info) != 0) return file.SystemError("fstat");
  if (!S_ISREG(info.st_mode)) {
    return file.Error(absl::StatusCode::kInvalidArgument,
                      "is not a regular file");
  }
  return file;
}

absl::Status RecordFile::SystemError(const char* call) const {
  const int error = errno;
  return Error(absl::ErrnoToStatusCode(error), call, ": ",
               std::strerror(error));
}

absl::Status RecordFile::Lock(const Deadline& deadline) {
  // LOCK_NB, since a blocking flock could wait without end for a stopped
  // process.
  while (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return SystemError("flock");
    if (deadline.passed()) {
      return Error(absl::StatusCode::kDeadlineExceeded,
                   "another process keeps it locked");
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  return absl::OkStatus();
}

void RecordFile::Unlock() { flock(file_.get(), LOCK_UN); }

bool RecordFile::IsAtPath() const {
  struct stat mine;
  struct stat at_path;
  return fstat(file_.get(), &mine) == 0 && stat(path_.c_str(), &at_path) == 0 &&
         IsSameFile(mine, at_path);
}

bool RecordFile::HasGrown() const {
  struct stat info;
  return fstat(file_.get(), &info) != 0 || info.st_size != used_;
}

absl::Status RecordFile::Read() {
  struct stat info;
  if (fstat(file_.get(), &info) != 0) return SystemError("fstat");
  if (info.st_size < used_) {
    return Error(absl::StatusCode::kDataLoss, "something cut it to ",
                 info.st_size, " bytes while it was in use");
  }
  std::string chunk;
  while (true) {
    chunk.resize(kChunkBytes);
    const ssize_t size = pread(file_.get(), chunk.data(), chunk.size(), used_);
    if (size < 0) return SystemError("read");
    auto parsed = ParseRecords(
        absl::string_view(chunk).substr(0, static_cast<size_t>(size)));
    if (!parsed.ok()) {
      return Error(absl::StatusCode::kDataLoss, "after byte ", used_, ", ",
                   parsed.status().message());
    }
    if (parsed->used == 0) return absl::OkStatus();
    used_ += static_cast<int64_t>(parsed->used);
    std::move(parsed->records.begin(), parsed->records.end(),
              std::back_inserter(records_));
  }
}

absl::Status RecordFile::Append(const RendezvousRecord& record) {
  if (ftruncate(file_.get(), used_) != 0) return SystemError("ftruncate");
  const std::string bytes = Encode(record);
  const ssize_t written =
      pwrite(file_.get(), bytes.data(), bytes.size(), used_);
  if (written < 0) return SystemError("write");
  if (static_cast<size_t>(written) != bytes.size()) {
    return Error(absl::StatusCode::kResourceExhausted, "no space");
  }
  used_ += written;
  records_.push_back(record);
  return absl::OkStatus();
}

absl::Status RecordFile::Clear() {
  if (ftruncate(file_.get(), 0) != 0) return SystemError("ftruncate");
  used_ = 0;
  records_.clear();
  return absl::OkStatus();
}

bool RecordFile::Unlink() {
  struct stat mine;
  struct stat at_path;
  // Not through a symbolic link: neither the link nor its target is ours.
  if (fstat(file_.get(), &mine) != 0 || lstat(path_.c_str(), &at_path) != 0 ||
      !IsSameFile(mine, at_path)) {
    return false;
  }
  return unlink(path_.c_str()) == 0;
}

}  // namespace lockstep
