// Tests of the file rendezvous, with threads and with processes that end, once
// and several times at one path.
#include "collectives/rendezvous/file_rendezvous.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/process.h"
#include "base/status_matchers.h"
#include "collectives/rendezvous/record_file.h"
#include "collectives/rendezvous/rendezvous.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

using Blobs = absl::StatusOr<std::vector<std::string>>;
using Ranks = std::vector<std::unique_ptr<Rendezvous>>;

// Returns a path that differs in every run, so that leftovers do no harm.
std::string PathOf(const std::string& name) {
  return absl::StrCat(testing::TempDir(), "/", getpid(), "_", name);
}

std::string Contents(const std::string& path) {
  return ReadFile(path).value_or("");
}

bool Exists(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0;
}

// A file without a name, as our launcher creates it. Cannot be removed.
struct Memfd {
  std::string path() const {
    return absl::StrCat("/proc/", getpid(), "/fd/", fd.get());
  }
  const OwnedFd fd = OwnedFd(memfd_create("test", MFD_CLOEXEC));
};

std::unique_ptr<Rendezvous> OpenAt(const std::string& path, int rank,
                                   int world_size,
                                   absl::Duration timeout = absl::Seconds(20),
                                   bool own_folder = false) {
  auto rendezvous =
      OpenFileRendezvous({path, rank, world_size, timeout, own_folder});
  EXPECT_THAT(rendezvous, IsOk());
  return *std::move(rendezvous);
}

Ranks OpenAll(const std::string& path, int world_size) {
  Ranks ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(OpenAt(path, rank, world_size));
  }
  return ranks;
}

// Runs one Exchange per rank, each in a thread, of its number. Returns the
// results.
std::vector<Blobs> ExchangeAll(const Ranks& ranks) {
  std::vector<Blobs> results(ranks.size(), absl::UnknownError("not set"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      results[i] = ranks[i]->Exchange(absl::StrCat("rank ", ranks[i]->rank()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// Exchanges on another thread, and returns once the blob is in the file.
std::future<Blobs> ExchangeMeanwhile(Rendezvous& rank, const std::string& path,
                                     const std::string& blob = "") {
  const size_t before = Contents(path).size();
  std::future<Blobs> result = std::async(
      std::launch::async, [&rank, blob] { return rank.Exchange(blob); });
  while (Contents(path).size() == before) std::this_thread::yield();
  return result;
}

// Returns the identity of a process that has ended.
ProcessIdentity EndedProcessIdentity() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  // The child may be a zombie.
  const uint64_t start = ReadProcessStat(child)->start_ticks;
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  return {child, start};
}

// Returns a record of a process that has ended, written `ticks` after (or
// before) this process started.
RendezvousRecord EndedProcessRecord(int rank, int world_size, int64_t ticks) {
  return {
      .round = 1,
      .rank = rank,
      .world_size = world_size,
      .writer = EndedProcessIdentity(),
      .token = 99 + static_cast<uint64_t>(rank),
      .written_ticks = ThisProcess().start_ticks + static_cast<uint64_t>(ticks),
      .blob = "an earlier life"};
}

TEST(FileRendezvousTest, RanksMeetInEveryRound) {
  const std::string path = PathOf("meet");
  Ranks ranks = OpenAll(path, 4);
  for (int round = 0; round < 10; ++round) {
    EXPECT_THAT(ExchangeAll(ranks),
                Each(IsOkAndHolds(
                    ElementsAre("rank 0", "rank 1", "rank 2", "rank 3"))));
  }
  EXPECT_FALSE(Exists(path));  // Removed because all have met.
}

TEST(FileRendezvousTest, BlobsMayHoldAnyBytes) {
  const std::string large(kMaxBlobBytes, '\0');
  const auto alone = OpenAt(PathOf("blobs"), 0, 1);
  EXPECT_THAT(alone->Exchange(large), IsOkAndHolds(ElementsAre(large)));
  EXPECT_THAT(alone->Exchange(""), IsOkAndHolds(ElementsAre("")));
}

TEST(FileRendezvousTest, EveryRankIsToldOfABlobThatIsTooLarge) {
  const std::string path = PathOf("too_large");
  const auto too_large =
      StatusIs(absl::StatusCode::kInvalidArgument,
               "rank 1 publishes 65537 bytes: more than 65536");
  const auto zero = OpenAt(path, 0, 2);
  std::future<Blobs> other = ExchangeMeanwhile(*zero, path);
  const auto one = OpenAt(path, 1, 2);
  EXPECT_THAT(one->Exchange(std::string(kMaxBlobBytes + 1, 'x')), too_large);
  EXPECT_THAT(one->Exchange(""), too_large);
  EXPECT_THAT(other.get(), too_large);
}

TEST(FileRendezvousTest, DoesNotRemoveWhatASymbolicLinkLeadsTo) {
  const std::string target = PathOf("link_target");
  const std::string link = PathOf("link");
  std::ofstream(target, std::ios::binary) << "";
  ASSERT_EQ(symlink(target.c_str(), link.c_str()), 0);
  EXPECT_THAT(OpenAt(link, 0, 1)->Exchange(""), IsOk());
  EXPECT_TRUE(Exists(link));
  EXPECT_EQ(Contents(target), "");
  EXPECT_TRUE(Exists(target));
}

TEST(FileRendezvousTest, WrongRankWorldSizeAndPath) {
  const std::string pipe = PathOf("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& [options, named] :
       std::vector<std::pair<FileRendezvousOptions, std::string>>{
           {{PathOf("x"), 2, 2}, "rank 2 is outside [0, 2)"},
           {{PathOf("x"), -1, 2}, "rank -1 is outside [0, 2)"},
           {{PathOf("x"), 0, 0}, "world size 0"},
           {{"/dev/null", 0, 1}, "/dev/null: is not a regular file"},
           {{pipe, 0, 1}, "is not a regular file"}}) {
    EXPECT_THAT(OpenFileRendezvous(options).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(named)));
  }
  EXPECT_THAT(OpenFileRendezvous({PathOf("no/folder"), 0, 1}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no/folder")));
}

TEST(FileRendezvousTest, EveryRankGetsTheFirstErrorAndKeepsIt) {
  const std::string path = PathOf("first_error");
  const auto one = OpenAt(path, 1, 3);
  std::future<Blobs> other = ExchangeMeanwhile(*one, path);
  const auto zero = OpenAt(path, 0, 3, absl::Milliseconds(50));
  const absl::Status first = zero->Exchange("").status();
  EXPECT_THAT(first, StatusIs(absl::StatusCode::kDeadlineExceeded,
                              HasSubstr("rank 2 of 3 did not come")));
  EXPECT_EQ(zero->Exchange("").status(), first);
  EXPECT_EQ(other.get().status(), first);
}

TEST(FileRendezvousTest, NamesARankThatLeft) {
  const std::string path = PathOf("left");
  Ranks ranks = OpenAll(path, 2);
  EXPECT_THAT(ExchangeAll(ranks), Each(IsOk()));
  ranks[1].reset();
  EXPECT_THAT(ranks[0]->Exchange(""),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 1 (pid "), HasSubstr(" left"))));
}

TEST(FileRendezvousTest, RanksThatDisagreeOnTheWorldSize) {
  const std::string path = PathOf("disagree");
  Ranks ranks;
  ranks.push_back(OpenAt(path, 0, 3));
  ranks.push_back(OpenAt(path, 1, 4));
  EXPECT_THAT(
      ExchangeAll(ranks),
      Each(StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("disagree on the world size: rank "),
                          HasSubstr(" says 3"), HasSubstr(" says 4")))));
}

TEST(FileRendezvousTest, IgnoresWhatAnEarlierRunLeft) {
  const std::string path = PathOf("earlier");
  // The records have another world size and are complete; an unfinished one
  // follows.
  std::string bytes;
  for (int rank = 0; rank < 3; ++rank) {
    bytes += Encode(EndedProcessRecord(rank, 3, -1));
  }
  std::ofstream(path, std::ios::binary) << bytes + bytes.substr(0, 30);
  Ranks ranks = OpenAll(path, 2);
  EXPECT_THAT(ExchangeAll(ranks),
              Each(IsOkAndHolds(ElementsAre("rank 0", "rank 1"))));
}

// The control of the test above: the same record, written after this process
// began, belongs to this run, and its writer has died.
TEST(FileRendezvousTest, NamesARankOfThisRunThatDied) {
  const std::string path = PathOf("died");
  const RendezvousRecord record = EndedProcessRecord(1, 3, +1);
  std::ofstream(path, std::ios::binary) << Encode(record);
  EXPECT_THAT(
      OpenAt(path, 0, 3)->Exchange(""),
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr(path),
                     HasSubstr(absl::StrCat("rank 1 (pid ", record.writer.pid,
                                            ") died")))));
}

TEST(FileRendezvousTest, NamesARankThatIsKilledWhileItWaits) {
  const std::string path = PathOf("killed");
  const pid_t child = fork();
  if (child == 0) {
    (void)OpenAt(path, 1, 3)->Exchange("");
    _exit(0);
  }
  const absl::Time start = absl::Now();
  const auto zero = OpenAt(path, 0, 3);
  std::future<Blobs> result = ExchangeMeanwhile(*zero, path);
  // With two records in the file, both ranks wait for rank 2.
  while (Contents(path).size() < 144) std::this_thread::yield();
  ASSERT_TRUE(SendSignal(child, SIGKILL));
  EXPECT_THAT(
      result.get(),
      StatusIs(absl::StatusCode::kUnavailable,
               HasSubstr(absl::StrCat("rank 1 (pid ", child, ") died"))));
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(FileRendezvousTest, LeavesAForeignFileAsItIs) {
  const std::string path = PathOf("foreign");
  for (const std::string& content :
       {std::string("port = 29500\n"), std::string(3 << 20, '\0'),
        Encode(EndedProcessRecord(0, 1, -1)) + "and more"}) {
    std::ofstream(path, std::ios::binary) << content;
    EXPECT_THAT(OpenAt(path, 0, 1)->Exchange(""),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
    EXPECT_TRUE(Contents(path) == content);
  }
}

TEST(FileRendezvousTest, FileThatIsCutWhileInUse) {
  const std::string path = PathOf("cut");
  const auto rank = OpenAt(path, 0, 2);
  std::future<Blobs> result = ExchangeMeanwhile(*rank, path);
  ASSERT_EQ(truncate(path.c_str(), 10), 0);
  EXPECT_THAT(result.get(),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("something cut it to 10 bytes")));
}

// A process that is stopped while it holds the lock has this effect.
TEST(FileRendezvousTest, LockThatIsNeverGivenBack) {
  const std::string path = PathOf("locked");
  const OwnedFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(file.get(), LOCK_EX), 0);
  EXPECT_THAT(OpenAt(path, 0, 1, absl::Milliseconds(50))->Exchange(""),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("another process keeps it locked")));
}

// A rank opens the file just before another run removes it.
TEST(FileRendezvousTest, FileThatIsRemovedBeforeTheFirstExchange) {
  const std::string path = PathOf("removed");
  Ranks ranks;
  ranks.push_back(OpenAt(path, 0, 2));
  ASSERT_EQ(unlink(path.c_str()), 0);
  ranks.push_back(OpenAt(path, 1, 2));
  EXPECT_THAT(ExchangeAll(ranks), Each(IsOk()));
}

TEST(FileRendezvousTest, PathServesOneRunAfterTheOther) {
  const std::string path = PathOf("again");
  for (int run = 0; run < 20; ++run) {
    const int world_size = 1 + run % 3;
    EXPECT_THAT(ExchangeAll(OpenAll(path, world_size)), Each(IsOk()));
  }
}

// Several meetings at one path, one after the other. Some ranks are already at
// the next meeting while other ranks are still at the previous one.

// Returns two ranks after their first exchange.
Ranks MeetAt(const std::string& path) {
  Ranks ranks = OpenAll(path, 2);
  EXPECT_THAT(ExchangeAll(ranks),
              Each(IsOkAndHolds(ElementsAre("rank 0", "rank 1"))));
  return ranks;
}

TEST(FileRendezvousMeetingsTest, WhoIsFirstAtTheNextWaitsThere) {
  const Memfd file;
  Ranks first = MeetAt(file.path());
  first[1].reset();
  const auto next_one = OpenAt(file.path(), 1, 2);
  std::future<Blobs> result =
      ExchangeMeanwhile(*next_one, file.path(), "next one");
  // Rank 0 leaves the first meeting only now.
  first[0].reset();
  EXPECT_THAT(OpenAt(file.path(), 0, 2)->Exchange("next zero"),
              IsOkAndHolds(ElementsAre("next zero", "next one")));
  EXPECT_THAT(result.get(), IsOkAndHolds(ElementsAre("next zero", "next one")));
}

TEST(FileRendezvousMeetingsTest, RanksMayKeepTheLastWhileTheyMeetAgain) {
  const Memfd file;
  {
    const Ranks first = MeetAt(file.path());
    const Ranks second = MeetAt(file.path());
    EXPECT_THAT(ExchangeAll(first),
                Each(IsOkAndHolds(ElementsAre("rank 0", "rank 1"))));
  }
  EXPECT_THAT(ReadFile(file.path()),
              IsOkAndHolds(""));  // The last to leave empties it.
}

TEST(FileRendezvousMeetingsTest, AnotherWorldSizeAtTheNext) {
  const Memfd file;
  const Ranks last = MeetAt(file.path());
  EXPECT_THAT(OpenAt(file.path(), 0, 1)->Exchange("alone"),
              IsOkAndHolds(ElementsAre("alone")));
}

// Tests the first meeting, and the next one while the previous one goes on.
TEST(FileRendezvousMeetingsTest, NamesTheRanksThatDoNotCome) {
  const std::string path = PathOf("missing");
  const Memfd file;
  const Ranks last = MeetAt(file.path());
  for (const std::string& at : {path, file.path()}) {
    EXPECT_THAT(
        OpenAt(at, 1, 4, absl::Milliseconds(50))->Exchange(""),
        StatusIs(absl::StatusCode::kDeadlineExceeded,
                 AllOf(HasSubstr(at),
                       HasSubstr("ranks 0, 2, 3 of 4 did not come within "
                                 "50ms"))));
  }
  EXPECT_FALSE(Exists(path));  // The last to leave removes it.
}

// A second rank 0 arrives while the first still waits. Only the second is
// refused.
TEST(FileRendezvousMeetingsTest, SecondClaimantOfARankIsRefused) {
  const Memfd file;
  const Ranks last = MeetAt(file.path());
  for (const std::string& at : {PathOf("claim"), file.path()}) {
    const auto first = OpenAt(at, 0, 2);
    std::future<Blobs> result = ExchangeMeanwhile(*first, at, "first");
    EXPECT_THAT(OpenAt(at, 0, 2)->Exchange("second"),
                StatusIs(absl::StatusCode::kAlreadyExists,
                         HasSubstr(absl::StrCat("rank 0 (pid ", getpid(),
                                                ") has joined already"))));
    EXPECT_THAT(OpenAt(at, 1, 2)->Exchange("other"),
                IsOkAndHolds(ElementsAre("first", "other")));
    EXPECT_THAT(result.get(), IsOkAndHolds(ElementsAre("first", "other")));
  }
}

// Each rank meets the other ranks again and again, as fast as it can.
void MeetManyTimes(const std::string& path, bool own_folder = false) {
  constexpr int kRanks = 3;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([=] {
      for (int meeting = 0; meeting < 20; ++meeting) {
        const auto here =
            OpenAt(path, rank, kRanks, absl::Seconds(20), own_folder);
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

TEST(FileRendezvousMeetingsTest, Many) {
  const Memfd file;
  MeetManyTimes(file.path());
  EXPECT_THAT(ReadFile(file.path()), IsOkAndHolds(""));
  const std::string path = PathOf("meetings");
  MeetManyTimes(path);
  EXPECT_FALSE(Exists(path));
  MeetManyTimes(path + "/file", /*own_folder=*/true);
  EXPECT_FALSE(Exists(path));
}

}  // namespace
}  // namespace lockstep
