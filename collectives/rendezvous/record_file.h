// The records that ranks append to a rendezvous file.
//
// A record is 72 bytes of header and a blob, in the byte order of the host:
// magic[8], checksum of all the rest (FNV-1a, 64 bits), token, start and
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
  kPublish = 0,  // `blob` is what the rank publishes in `round`.
  kLeave = 1,    // The writer takes no part any more; `blob` says why.
};

struct RendezvousRecord {
  RecordKind kind = RecordKind::kPublish;
  uint64_t meeting = 1;  // From 1; of those that the file has seen.
  uint32_t round = 0;    // From 1, in each meeting.
  int32_t rank = 0;
  int32_t world_size = 1;
  ProcessIdentity writer;
  uint64_t token = 0;          // One for each Rendezvous object.
  uint64_t written_ticks = 0;  // TicksSinceHostStart.
  std::string blob;

  friend bool operator==(const RendezvousRecord&,
                         const RendezvousRecord&) = default;
};

std::string Encode(const RendezvousRecord& record);

struct ParsedRecords {
  std::vector<RendezvousRecord> records;
  // Bytes of whole records. What follows is the beginning of a record.
  size_t used = 0;
};

// Reads records one after the other. Error: kDataLoss, "byte N: ...", where
// something else than a record, or the beginning of one, stands.
absl::StatusOr<ParsedRecords> ParseRecords(absl::string_view bytes);

// Not thread safe. Messages name the path. Methods marked [locked] need the
// lock, which the caller takes and gives back.
class RecordFile {
 public:
  // Creates the file if it is absent. Errors: kInvalidArgument if the path is
  // something else than a regular file; the file system's.
  static absl::StatusOr<RecordFile> Open(const std::string& path);

  // An error that begins with the path.
  template <typename... What>
  absl::Status Error(absl::StatusCode code, const What&... what) const {
    return absl::Status(code,
                        absl::StrCat("rendezvous file ", path_, ": ", what...));
  }

  // All records read so far.
  const std::vector<RendezvousRecord>& records() const { return records_; }

  // Error: kDeadlineExceeded if another process keeps the lock.
  absl::Status Lock(const Deadline& deadline);
  void Unlock();

  // Whether the path still leads to this file: a rank that removes the file
  // leaves those that opened it with one that nobody else finds.
  bool IsAtPath() const;
  // Reads what came since. [locked] Error: kDataLoss.
  absl::Status Read();
  // Whether there may be something to Read. Cost: a system call.
  bool HasGrown() const;
  // Adds to the end; a record that its writer, dead since, left unfinished is
  // cut off. [locked] Call Read before.
  absl::Status Append(const RendezvousRecord& record);
  // Forgets and deletes all records. [locked]
  absl::Status Clear();
  // Removes the file, if it is reached by its own name; else false. [locked]
  bool Unlink();

 private:
  RecordFile(std::string path, OwnedFd file)
      : path_(std::move(path)), file_(std::move(file)) {}
  // That of errno, after `call` failed.
  absl::Status SystemError(const char* call) const;

  std::string path_;
  OwnedFd file_;      // Closing it gives up the lock, too.
  int64_t used_ = 0;  // Bytes of records_.
  std::vector<RendezvousRecord> records_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_RECORD_FILE_H_
