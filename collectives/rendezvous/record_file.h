// A file of rendezvous records that several processes append to.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_RECORD_FILE_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_RECORD_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/rendezvous/deadline.h"
#include "collectives/rendezvous/record.h"

namespace lockstep {

// Not thread safe. Messages name the path. Methods marked [locked] need the
// lock, which the caller takes and gives back.
class RecordFile {
 public:
  // Creates the file if it is absent. Errors: kInvalidArgument if the path is
  // something else than a regular file; the file system's.
  static absl::StatusOr<RecordFile> Open(const std::string& path);

  RecordFile(RecordFile&& other) noexcept;
  RecordFile& operator=(RecordFile&& other) noexcept;
  ~RecordFile();

  const std::string& path() const { return path_; }
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
  // Removes the file, if it is reached by its own name, or else clears it.
  // [locked]
  void Remove();
  // Removes the file, if it is reached by its own name. [locked]
  bool Unlink();

 private:
  RecordFile(std::string path, int fd);
  absl::Status Error(const char* call) const;

  std::string path_;
  int fd_;
  int64_t used_ = 0;  // Bytes of records_.
  std::vector<RendezvousRecord> records_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_RECORD_FILE_H_
