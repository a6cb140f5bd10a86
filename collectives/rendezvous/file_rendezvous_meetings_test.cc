// The records of a rendezvous file; and several meetings at one path, one after
// the other, where some ranks are already at the next while others are still at
// the last.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/rendezvous/file_rendezvous.h"
#include "collectives/rendezvous/record_file.h"
#include "collectives/rendezvous/rendezvous.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
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

using Blobs = absl::StatusOr<std::vector<std::string>>;

// As our launcher has it: a file without a name, which cannot be removed.
class Memfd {
 public:
  Memfd() : fd_(memfd_create("test", MFD_CLOEXEC)) {}
  ~Memfd() { close(fd_); }

  std::string path() const {
    return absl::StrCat("/proc/", getpid(), "/fd/", fd_);
  }
  int64_t size() const {
    struct stat info;
    return fstat(fd_, &info) == 0 ? info.st_size : -1;
  }

 private:
  const int fd_;
};

std::unique_ptr<Rendezvous> OpenAt(const std::string& path, int rank,
                                   int world_size,
                                   absl::Duration timeout = absl::Seconds(20)) {
  auto rendezvous = OpenFileRendezvous({path, rank, world_size, timeout});
  EXPECT_THAT(rendezvous, IsOk());
  return *std::move(rendezvous);
}

// Rank 0 and rank 1 of two, after their first exchange.
struct Pair {
  std::unique_ptr<Rendezvous> zero;
  std::unique_ptr<Rendezvous> one;
};

Pair MeetAt(const std::string& path) {
  Pair pair = {OpenAt(path, 0, 2), OpenAt(path, 1, 2)};
  std::thread other([&] {
    EXPECT_THAT(pair.one->Exchange("one"),
                IsOkAndHolds(ElementsAre("zero", "one")));
  });
  EXPECT_THAT(pair.zero->Exchange("zero"),
              IsOkAndHolds(ElementsAre("zero", "one")));
  other.join();
  return pair;
}

TEST(FileRendezvousMeetingsTest, WhoIsFirstAtTheNextWaitsThere) {
  const Memfd file;
  Pair first = MeetAt(file.path());
  first.one.reset();
  const auto next_one = OpenAt(file.path(), 1, 2);
  Blobs result = absl::UnknownError("not set");
  const int64_t before = file.size();
  std::thread waiting([&] { result = next_one->Exchange("next one"); });
  while (file.size() == before) std::this_thread::yield();
  // Rank 0 is at the first until now.
  first.zero.reset();
  EXPECT_THAT(OpenAt(file.path(), 0, 2)->Exchange("next zero"),
              IsOkAndHolds(ElementsAre("next zero", "next one")));
  waiting.join();
  EXPECT_THAT(result, IsOkAndHolds(ElementsAre("next zero", "next one")));
}

TEST(FileRendezvousMeetingsTest, RanksMayKeepTheLastWhileTheyMeetAgain) {
  const Memfd file;
  {
    const Pair first = MeetAt(file.path());
    const Pair second = MeetAt(file.path());
    std::thread other([&] {
      EXPECT_THAT(first.one->Exchange("1"),
                  IsOkAndHolds(ElementsAre("0", "1")));
    });
    EXPECT_THAT(first.zero->Exchange("0"), IsOkAndHolds(ElementsAre("0", "1")));
    other.join();
  }
  EXPECT_EQ(file.size(), 0);  // The last to go empties it.
}

TEST(FileRendezvousMeetingsTest, AnotherWorldSizeAtTheNext) {
  const Memfd file;
  const Pair pair = MeetAt(file.path());
  EXPECT_THAT(OpenAt(file.path(), 0, 1)->Exchange("alone"),
              IsOkAndHolds(ElementsAre("alone")));
}

// Who comes to the next only names those that are missing there.
TEST(FileRendezvousMeetingsTest, NamesWhoDoesNotComeToTheNext) {
  const Memfd file;
  const Pair pair = MeetAt(file.path());
  EXPECT_THAT(OpenAt(file.path(), 1, 2, absl::Milliseconds(50))->Exchange(""),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 0 of 2 did not come within 50ms")));
}

TEST(FileRendezvousMeetingsTest, SecondClaimantAtTheNextIsRefused) {
  const Memfd file;
  const Pair pair = MeetAt(file.path());
  const auto next_one = OpenAt(file.path(), 1, 2);
  const int64_t before = file.size();
  std::thread waiting([&] { EXPECT_THAT(next_one->Exchange(""), IsOk()); });
  while (file.size() == before) std::this_thread::yield();
  EXPECT_THAT(OpenAt(file.path(), 1, 2)->Exchange(""),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("is there already")));
  EXPECT_THAT(OpenAt(file.path(), 0, 2)->Exchange(""), IsOk());
  waiting.join();
}

// Each rank meets the others again and again, as fast as it can.
void MeetManyTimes(const std::string& path) {
  constexpr int kRanks = 3;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([rank, &path] {
      for (int meeting = 0; meeting < 20; ++meeting) {
        const auto here = OpenAt(path, rank, kRanks);
        for (int round = 0; round < 2; ++round) {
          const std::string blob = absl::StrCat(meeting, " ", round);
          ASSERT_THAT(here->Exchange(blob),
                      IsOkAndHolds(ElementsAre(blob, blob, blob)));
        }
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(FileRendezvousMeetingsTest, ManyInAMemfd) {
  const Memfd file;
  MeetManyTimes(file.path());
  EXPECT_EQ(file.size(), 0);
}

TEST(FileRendezvousMeetingsTest, ManyAtAName) {
  const std::string path =
      absl::StrCat(testing::TempDir(), "/", getpid(), "_meetings");
  MeetManyTimes(path);
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace lockstep
