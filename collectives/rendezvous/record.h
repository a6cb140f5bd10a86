// The records that ranks append to a rendezvous file.
//
// A record is 72 bytes of header and a blob, in the byte order of the host:
// magic[8], checksum of all the rest (FNV-1a, 64 bits), token, start and
// writing time (ticks), meeting, pid, rank, world size, round, kind, size of
// the blob.
#ifndef LOCKSTEP_COLLECTIVES_RENDEZVOUS_RECORD_H_
#define LOCKSTEP_COLLECTIVES_RENDEZVOUS_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/rendezvous/process_identity.h"

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

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_RENDEZVOUS_RECORD_H_
