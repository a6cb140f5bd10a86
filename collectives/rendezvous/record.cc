// Records to bytes and back.
#include "collectives/rendezvous/record.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

uint64_t Fnv1a(uint64_t hash, const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

uint64_t Checksum(Header header, absl::string_view blob) {
  header.checksum = 0;
  const uint64_t hash = Fnv1a(0xcbf29ce484222325, &header, sizeof(header));
  return Fnv1a(hash, blob.data(), blob.size());
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
  RendezvousRecord record;
  record.kind = static_cast<RecordKind>(header.kind);
  record.meeting = header.meeting;
  record.round = header.round;
  record.rank = header.rank;
  record.world_size = header.world_size;
  record.writer = {header.pid, header.start_ticks};
  record.token = header.token;
  record.written_ticks = header.written_ticks;
  record.blob = std::string(blob);
  return record;
}

}  // namespace

std::string Encode(const RendezvousRecord& record) {
  Header header;
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.token = record.token;
  header.start_ticks = record.writer.start_ticks;
  header.written_ticks = record.written_ticks;
  header.meeting = record.meeting;
  header.pid = record.writer.pid;
  header.rank = record.rank;
  header.world_size = record.world_size;
  header.round = record.round;
  header.kind = static_cast<uint32_t>(record.kind);
  header.blob_size = static_cast<uint32_t>(record.blob.size());
  header.checksum = Checksum(header, record.blob);
  std::string bytes(sizeof(header) + record.blob.size(), '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::copy(record.blob.begin(), record.blob.end(),
            bytes.begin() + sizeof(header));
  return bytes;
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

}  // namespace lockstep
