#include "collectives/host/host_group.h"

#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/rendezvous/file_rendezvous.h"
#include "collectives/rendezvous/rendezvous.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

// Not the same in another run, whose leftovers would be in the way.
std::string PathOf(const std::string& name) {
  return absl::StrCat(testing::TempDir(), "/", getpid(), "_", name);
}

bool Exists(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0;
}

std::multiset<std::string> NamesIn(const std::string& folder) {
  std::multiset<std::string> names;
  DIR* stream = opendir(folder.c_str());
  while (const dirent* entry = readdir(stream)) names.insert(entry->d_name);
  closedir(stream);
  return names;
}

// Mappings of group memory in this process.
int GroupMappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, "memfd:lockstep")) ++count;
  }
  return count;
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinAt(const std::string& path,
                                                     int rank, int world_size) {
  FileRendezvousOptions options;
  options.path = path;
  options.rank = rank;
  options.world_size = world_size;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Rendezvous> rendezvous,
                            OpenFileRendezvous(options));
  return JoinProcessGroup(*rendezvous);
}

absl::Status SumOfOnes(Communicator& communicator) {
  int64_t one = 1;
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce(std::span(&one, 1)));
  if (one == communicator.world_size()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("sum of ones is ", one));
}

TEST(ProcessGroupTest, JoinsTwoHundredTimesAndLeavesNothing) {
  const std::string path = PathOf("two_hundred");
  const auto shared_before = NamesIn("/dev/shm");
  const auto statuses =
      RunRanks(Backend::kProcesses, 2, [&](Communicator& outer) {
        const auto files = NamesIn("/proc/self/fd");
        const int mappings = GroupMappings();
        for (int i = 0; i < 200; ++i) {
          LOCKSTEP_ASSIGN_OR_RETURN(
              const std::unique_ptr<Communicator> inner,
              JoinAt(path, outer.rank(), outer.world_size()));
          LOCKSTEP_RETURN_IF_ERROR(SumOfOnes(*inner));
        }
        if (NamesIn("/proc/self/fd") != files) {
          return absl::InternalError("files are left open");
        }
        if (GroupMappings() != mappings) {
          return absl::InternalError("memory is left mapped");
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_FALSE(Exists(path));
  EXPECT_EQ(NamesIn("/dev/shm"), shared_before);
}

// The control of the test above: what it looks for is there while a group is.
TEST(ProcessGroupTest, GroupHoldsAMapping) {
  const auto statuses = RunRanks(Backend::kProcesses, 2, [](Communicator&) {
    return GroupMappings() == 1 ? absl::OkStatus()
                                : absl::InternalError("no mapping");
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(ProcessGroupTest, TwoGroupsAtOnceDoNotMix) {
  const std::string path = PathOf("inner");
  const auto statuses =
      RunRanks(Backend::kProcesses, 3, [&](Communicator& outer) {
        // The same processes, in another order.
        LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> inner,
                                  JoinAt(path, 2 - outer.rank(), 3));
        for (int i = 0; i < 100; ++i) {
          int64_t data[2] = {outer.rank(), inner->rank()};
          LOCKSTEP_RETURN_IF_ERROR(outer.Broadcast(
              std::as_writable_bytes(std::span(&data[0], 1)), 1));
          LOCKSTEP_RETURN_IF_ERROR(inner->Broadcast(
              std::as_writable_bytes(std::span(&data[1], 1)), 0));
          if (data[0] != 1 || data[1] != 0) {
            return absl::DataLossError("groups are mixed up");
          }
          LOCKSTEP_RETURN_IF_ERROR(SumOfOnes(*inner));
          LOCKSTEP_RETURN_IF_ERROR(SumOfOnes(outer));
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// A rendezvous whose other rank says `answer`.
class FakeRendezvous : public Rendezvous {
 public:
  explicit FakeRendezvous(std::string answer) : answer_(std::move(answer)) {}
  int rank() const override { return 1; }
  int world_size() const override { return 2; }
  absl::StatusOr<std::vector<std::string>> Exchange(
      absl::string_view blob) override {
    return std::vector<std::string>{answer_, std::string(blob)};
  }

 private:
  const std::string answer_;
};

TEST(ProcessGroupTest, RankZeroThatSpeaksAnotherLanguageIsNamed) {
  for (const std::string answer : {"", "hello", "0 ", "0 x y z", "0 1 2"}) {
    FakeRendezvous rendezvous(answer);
    EXPECT_THAT(JoinProcessGroup(rendezvous),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "rank 0 did not come to form a process group"))
        << answer;
  }
}

TEST(ProcessGroupTest, MemoryThatIsNotAGroups) {
  const std::string path = PathOf("not_memory");
  std::ofstream(path) << std::string(100000, 'x');
  FakeRendezvous rendezvous(absl::StrCat("0 1 2 ", path));
  EXPECT_THAT(JoinProcessGroup(rendezvous),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is not a group's memory")));
  FakeRendezvous missing("0 1 2 /proc/self/fd/9999");
  EXPECT_THAT(JoinProcessGroup(missing),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("/proc/self/fd/9999")));
}

TEST(RunOnThreadsTest, RunsEveryRankOnce) {
  for (const int world_size : {1, 2, 3, 8}) {
    std::atomic<int> ranks = 0;
    EXPECT_THAT(RunOnThreads(world_size, {},
                             [&](Communicator& group) {
                               ranks += 1 << group.rank();
                               return group.Barrier();
                             }),
                IsOk());
    EXPECT_EQ(ranks, (1 << world_size) - 1);
  }
}

// The others lose their peer; that is not the cause.
TEST(RunOnThreadsTest, ReturnsTheCause) {
  for (int culprit = 0; culprit < 3; ++culprit) {
    EXPECT_THAT(RunOnThreads(3, {},
                             [&](Communicator& group) {
                               return group.rank() == culprit
                                          ? absl::DataLossError("bad batch")
                                          : group.Barrier();
                             }),
                StatusIs(absl::StatusCode::kDataLoss, "bad batch"));
  }
}

TEST(RunOnThreadsTest, ReturnsALostPeerIfThatIsAllThereIs) {
  EXPECT_THAT(RunOnThreads(2, {},
                           [](Communicator& group) {
                             return group.rank() == 0 ? absl::OkStatus()
                                                      : group.Barrier();
                           }),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("rank 0 left the group")));
}

TEST(RunOnThreadsTest, RefusesAnImpossibleWorldSize) {
  EXPECT_THAT(
      RunOnThreads(0, {}, [](Communicator&) { return absl::OkStatus(); }),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("world size 0")));
}

class RunRanksTest : public testing::TestWithParam<Backend> {};

TEST_P(RunRanksTest, ReturnsEachRanksStatus) {
  EXPECT_THAT(
      RunRanks(GetParam(), 3,
               [](Communicator& communicator) {
                 return communicator.rank() == 1
                            ? absl::NotFoundError("nothing")
                            : absl::OkStatus();
               }),
      ElementsAre(IsOk(), StatusIs(absl::StatusCode::kNotFound, "nothing"),
                  IsOk()));
}

// More bytes than a pipe holds.
TEST_P(RunRanksTest, ReturnsEachRanksBytes) {
  const auto bytes = [](int rank) {
    return std::string(1 << 18, static_cast<char>('a' + rank));
  };
  EXPECT_THAT(
      RunRanksCollect(
          GetParam(), 2,
          [&](Communicator& communicator) -> absl::StatusOr<std::string> {
            return bytes(communicator.rank());
          }),
      ElementsAre(IsOkAndHolds(bytes(0)), IsOkAndHolds(bytes(1))));
}

TEST_P(RunRanksTest, ReportsWhyThereIsNoGroup) {
  RunRanksOptions options;
  options.group.slot_bytes = 65;
  const auto statuses = RunRanks(
      GetParam(), 2, [](Communicator&) { return absl::OkStatus(); }, options);
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("slot_bytes 65"))));
}

INSTANTIATE_TEST_SUITE_P(Backends, RunRanksTest,
                         testing::Values(Backend::kThreads,
                                         Backend::kProcesses),
                         [](const auto& info) { return Name(info.param); });

TEST(RunRanksProcessesTest, NamesTheSignalThatEndedARank) {
  const auto statuses =
      RunRanks(Backend::kProcesses, 2, [](Communicator& communicator) {
        if (communicator.rank() == 1) raise(SIGKILL);
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses,
              ElementsAre(IsOk(), StatusIs(absl::StatusCode::kAborted,
                                           "rank 1 ended by signal 9")));
}

TEST(RunRanksProcessesTest, NamesTheExitStatusOfARankWithoutResult) {
  const auto statuses = RunRanks(
      Backend::kProcesses, 1, [](Communicator&) -> absl::Status { _exit(3); });
  EXPECT_THAT(statuses, ElementsAre(StatusIs(absl::StatusCode::kAborted,
                                             HasSubstr("exit status 3"))));
}

TEST(RunRanksProcessesTest, KillsWhatOutlivesTheDeadline) {
  RunRanksOptions options;
  options.deadline = absl::Milliseconds(100);
  const auto statuses = RunRanks(
      Backend::kProcesses, 2,
      [](Communicator& communicator) {
        while (communicator.rank() == 1) pause();
        return absl::OkStatus();
      },
      options);
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                    HasSubstr("rank 1 was still running")));
}

TEST(RunRanksProcessesTest, EndsWhenOnlyStoppedRanksAreLeft) {
  const auto statuses =
      RunRanks(Backend::kProcesses, 2, [](Communicator& communicator) {
        if (communicator.rank() == 0) raise(SIGSTOP);
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, ElementsAre(StatusIs(absl::StatusCode::kAborted,
                                             HasSubstr("signal 9")),
                                    IsOk()));
}

}  // namespace
}  // namespace lockstep
