// Several meetings at one path, one after the other, where some ranks are
// already at the next while others are still at the last.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/rendezvous/file_rendezvous.h"
#include "collectives/rendezvous/rendezvous.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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
