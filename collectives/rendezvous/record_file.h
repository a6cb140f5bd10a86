// The records that ranks append to a rendezvous file.
//
// A record is 72 bytes of header and a blob, in the byte order of the host:
// magic[8], checksum of everything after it (FNV-1a, 64 bits), token, start and
// writing time (ticks), meeting, pid, rank, world size, round, kind, size of
// the blob.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_RECORD_FILE_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_RECORD_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/files.h"
#include "base/process.h"

namespace lockstep {

enum class RecordKind : uint32_t {
  kPublish = 0,  // `blob` is the blob that the rank publishes in `round`.
  kLeave = 1,    // The writer leaves the meeting; `blob` says why.
};

struct RendezvousRecord {
  RecordKind kind = RecordKind::kPublish;
  uint64_t meeting = 1;  // The number of the meeting in this file, from 1.
  uint32_t round = 0;    // The number of the round in its meeting, from 1.
  int32_t rank = 0;
  int32_t world_size = 1;
  ProcessIdentity writer;
  uint64_t token = 0;          // Unique to each Rendezvous object.
  uint64_t written_ticks = 0;  // TicksSinceHostStart.
  std::string blob;

  friend bool operator==(const RendezvousRecord&,
                         const RendezvousRecord&) = default;
};

std::string Encode(const RendezvousRecord& record);

struct ParsedRecords {
  std::vector<RendezvousRecord> records;
  // Bytes of whole records. The bytes after them begin an unfinished record.
  size_t used = 0;
};

// Reads records one after the other. Error: kDataLoss, "byte N: ...", if the
// bytes at N are neither a record nor the beginning of one.
absl::StatusOr<ParsedRecords> ParseRecords(absl::string_view bytes);

// A rendezvous file, opened. Not thread safe. Messages name the path. The
// caller must hold the lock when it calls a method marked [locked].
class RecordFile {
 public:
  // Creates the file if it is absent. Errors: kInvalidArgument if the path is
  // not a regular file; the file system's.
  static absl::StatusOr<RecordFile> Open(const std::string& path);

  // Returns an error that begins with the path.
  template <typename... What>
  absl::Status Error(absl::StatusCode code, const What&... what) const {
    return absl::Status(code,
                        absl::StrCat("rendezvous file ", path_, ": ", what...));
  }

  // The records read so far.
  const std::vector<RendezvousRecord>& records() const { return records_; }

  // Takes the lock. Error: kDeadlineExceeded if another process keeps the lock.
  absl::Status Lock(const Deadline& deadline);
  void Unlock();

  // Returns whether the path still leads to this file. If a rank has removed
  // the file, ranks that opened it before hold a file that no other rank finds.
  bool IsAtPath() const;
  // Reads the records that were appended since the last call. [locked] Error:
  // kDataLoss.
  absl::Status Read();
  // Returns whether the file may have new records to Read. Cost: a system call.
  bool HasGrown() const;
  // Appends a record. Cuts off an unfinished record, whose writer has died.
  // [locked] Call Read before.
  absl::Status Append(const RendezvousRecord& record);
  // Deletes all records, here and in the file. [locked]
  absl::Status Clear();
  // Removes the file. Returns false if the path is not the file's own name.
  // [locked]
  bool Unlink();

 private:
  RecordFile(std::string path, OwnedFd file)
      : path_(std::move(path)), file_(std::move(file)) {}
  // Returns the error of errno, after `call` failed.
  absl::Status SystemError(const char* call) const;

  std::string path_;
  OwnedFd file_;      // Closing it also releases the lock.
  int64_t used_ = 0;  // Bytes of records_.
  std::vector<RendezvousRecord> records_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_RECORD_FILE_H_
