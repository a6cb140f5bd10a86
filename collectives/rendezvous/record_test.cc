// Records come back, and what is no record is refused.
#include "collectives/rendezvous/record.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "collectives/rendezvous/rendezvous.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

RendezvousRecord MakeRecord(int rank, const std::string& blob) {
  RendezvousRecord record;
  record.kind = rank == 1 ? RecordKind::kLeave : RecordKind::kPublish;
  record.meeting = uint64_t{1} << (32 + rank);
  record.round = static_cast<uint32_t>(rank) + 1;
  record.rank = rank;
  record.world_size = 3;
  record.writer = {1000 + rank, 123456789};
  record.token = 0x0123456789abcdef + static_cast<uint64_t>(rank);
  record.written_ticks = 987654321;
  record.blob = blob;
  return record;
}

std::vector<RendezvousRecord> ThreeRecords() {
  return {MakeRecord(0, "here I am"), MakeRecord(1, ""),
          MakeRecord(2, std::string("\0\xff zero", 7))};
}

std::string EncodeAll(const std::vector<RendezvousRecord>& records) {
  std::string bytes;
  for (const RendezvousRecord& record : records) bytes += Encode(record);
  return bytes;
}

TEST(RecordTest, ParsesWhatItEncodes) {
  const auto parsed = ParseRecords(EncodeAll(ThreeRecords()));
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->records, ThreeRecords());
  EXPECT_EQ(parsed->used, EncodeAll(ThreeRecords()).size());
}

TEST(RecordTest, LargestBlob) {
  const RendezvousRecord record =
      MakeRecord(0, std::string(kMaxBlobBytes, 'b'));
  const auto parsed = ParseRecords(Encode(record));
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->records, std::vector<RendezvousRecord>{record});
  EXPECT_THAT(
      ParseRecords(Encode(MakeRecord(0, std::string(kMaxBlobBytes + 1, 'b')))),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong field")));
}

TEST(RecordTest, EveryBeginningIsUnfinishedAndNotWrong) {
  const std::string bytes = EncodeAll(ThreeRecords());
  const size_t first = Encode(ThreeRecords()[0]).size();
  const size_t second = first + Encode(ThreeRecords()[1]).size();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto parsed = ParseRecords(absl::string_view(bytes).substr(0, size));
    ASSERT_THAT(parsed, IsOk()) << size;
    const size_t whole = (size >= first ? 1 : 0) + (size >= second ? 1 : 0);
    EXPECT_EQ(parsed->records.size(), whole) << size;
    EXPECT_EQ(parsed->used, whole == 0 ? 0 : whole == 1 ? first : second);
  }
}

TEST(RecordTest, SomethingElseIsNamedWithItsPlace) {
  EXPECT_THAT(
      ParseRecords("{\"json\": 1}"),
      StatusIs(absl::StatusCode::kDataLoss, "byte 0: not a rendezvous record"));
  EXPECT_THAT(
      ParseRecords(std::string("\0", 1)),
      StatusIs(absl::StatusCode::kDataLoss, "byte 0: not a rendezvous record"));
  EXPECT_THAT(ParseRecords(Encode(MakeRecord(1, "")) + "x"),
              StatusIs(absl::StatusCode::kDataLoss,
                       "byte 72: not a rendezvous record"));
}

TEST(RecordTest, RankOutsideTheWorldIsWrong) {
  RendezvousRecord record = MakeRecord(0, "");
  record.rank = 3;
  EXPECT_THAT(ParseRecords(Encode(record)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong field")));
}

// Whether `records` are the first of the three that were written: what was
// changed is never taken for a record.
bool IsBeginning(const std::vector<RendezvousRecord>& records) {
  const std::vector<RendezvousRecord> three = ThreeRecords();
  return records.size() <= three.size() &&
         std::equal(records.begin(), records.end(), three.begin());
}

// Every byte set to every other value: 214 * 255 files.
TEST(RecordTest, NoChangedByteIsAccepted) {
  const std::string bytes = EncodeAll(ThreeRecords());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int change = 1; change < 256; ++change) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ change);
      const auto parsed = ParseRecords(changed);
      if (!parsed.ok()) {
        EXPECT_THAT(parsed,
                    StatusIs(absl::StatusCode::kDataLoss, HasSubstr("byte ")));
        continue;
      }
      // A changed size can make the last records look unfinished.
      EXPECT_TRUE(IsBeginning(parsed->records) && parsed->records.size() < 3)
          << "byte " << at << " xor " << change;
    }
  }
}

// Bytes removed, repeated and overwritten, in a fixed pseudo-random order.
TEST(RecordTest, NoMutationIsAccepted) {
  const std::string bytes = EncodeAll(ThreeRecords());
  uint64_t state = 17;
  const auto next = [&state](size_t limit) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return static_cast<size_t>(state >> 33) % limit;
  };
  for (int round = 0; round < 20000; ++round) {
    std::string changed = bytes;
    for (size_t edits = 1 + next(3); edits > 0; --edits) {
      const size_t at = next(changed.size());
      const size_t size = 1 + next(std::min<size_t>(80, changed.size() - at));
      switch (next(3)) {
        case 0:
          changed.erase(at, size);
          break;
        case 1:
          changed.insert(at, changed.substr(at, size));
          break;
        default:
          for (size_t i = at; i < at + size; ++i) {
            changed[i] = static_cast<char>(next(256));
          }
      }
      if (changed.empty()) break;
    }
    const auto parsed = ParseRecords(changed);
    if (!parsed.ok()) continue;
    // Whole records may have been removed or repeated.
    for (const RendezvousRecord& record : parsed->records) {
      const std::vector<RendezvousRecord> three = ThreeRecords();
      EXPECT_NE(std::find(three.begin(), three.end(), record), three.end());
    }
  }
}

}  // namespace
}  // namespace lockstep
