// What a test gets from ranks under mpirun, also from those that end badly; and
// what threads, a fork and the exit of a process do to its groups.
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/mpi/mpi_group.h"
#include "collectives/mpi/testing/mpirun.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

class MpirunTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyNoMpirun();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

absl::StatusOr<std::string> Describe(Communicator& communicator) {
  return absl::StrCat(communicator.rank(), " of ", communicator.world_size());
}

TEST_F(MpirunTest, CollectsWhatEachRankReturned) {
  EXPECT_THAT(RunMpiRanksCollect(2, Describe),
              ElementsAre(IsOkAndHolds("0 of 2"), IsOkAndHolds("1 of 2")));
}

TEST_F(MpirunTest, RunsLaterCallsOfABodyWithTheEarlierResults) {
  const auto first = RunMpiRanksCollect(1, Describe);
  ASSERT_THAT(first, ElementsAre(IsOkAndHolds("0 of 1")));
  EXPECT_THAT(
      RunMpiRanksCollect(
          2, [&](Communicator&) { return absl::StrCat("after ", *first[0]); }),
      ElementsAre(IsOkAndHolds("after 0 of 1"), IsOkAndHolds("after 0 of 1")));
}

TEST_F(MpirunTest, ReportsErrorsAndDeaths) {
  const auto statuses = RunMpiRanks(3, [](Communicator& communicator) {
    if (communicator.rank() == 1) raise(SIGKILL);
    if (communicator.rank() == 2) return absl::NotFoundError("its own");
    return absl::OkStatus();
  });
  EXPECT_THAT(
      statuses,
      ElementsAre(IsOk(),
                  StatusIs(absl::StatusCode::kAborted,
                           HasSubstr("rank 1 ended without a result")),
                  StatusIs(absl::StatusCode::kNotFound, HasSubstr("its own"))));
}

TEST_F(MpirunTest, KillsStoppedRanksOnceTheOthersAreDone) {
  const auto statuses = RunMpiRanks(2, [](Communicator& communicator) {
    if (communicator.rank() == 1) raise(SIGSTOP);
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses,
              ElementsAre(IsOk(), StatusIs(absl::StatusCode::kAborted,
                                           HasSubstr("without a result"))));
}

TEST_F(MpirunTest, EndsAtTheDeadline) {
  MpiRunOptions options;
  options.deadline = absl::Seconds(2);
  const auto statuses = RunMpiRanks(
      2,
      [](Communicator& communicator) {
        while (communicator.rank() == 1) pause();
        return absl::OkStatus();
      },
      options);
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kDeadlineExceeded,
                                    HasSubstr("running after 2s")));
}

TEST_F(MpirunTest, LeavesNoFiles) {
  const auto statuses = RunMpiRanks(2, [](Communicator& communicator) {
    if (communicator.rank() == 1) raise(SIGKILL);
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses[0], IsOk());
  for (const auto& entry :
       std::filesystem::directory_iterator(testing::TempDir())) {
    EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr("mpirun-")));
  }
}

class MpiProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyNoMpirun();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

// Each part's sums, which another group's messages would change.
absl::Status SplitOften(Communicator& communicator, int64_t base) {
  for (int64_t i = 0; i < 100; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto part, communicator.Split(0, 0));
    std::vector<int64_t> data(200, base + i);
    LOCKSTEP_RETURN_IF_ERROR(part->AllReduce(std::span(data)));
    const int64_t sum = (base + i) * part->world_size();
    if (data != std::vector<int64_t>(data.size(), sum)) {
      return absl::DataLossError(
          absl::StrCat("split ", i, ": ", data[0], " instead of ", sum));
    }
  }
  return absl::OkStatus();
}

// A thread for each group, so that their splits overlap.
absl::Status SplitGroupsAtOnce(Communicator& first) {
  constexpr size_t kGroups = 6;
  std::vector<std::unique_ptr<Communicator>> groups(kGroups);
  for (auto& group : groups) {
    LOCKSTEP_ASSIGN_OR_RETURN(group, JoinMpiGroup());
  }
  LOCKSTEP_RETURN_IF_ERROR(first.Barrier());
  std::vector<absl::Status> statuses(kGroups);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kGroups; ++i) {
    threads.emplace_back([&, i] {
      statuses[i] = SplitOften(*groups[i], static_cast<int64_t>(i) << 20);
    });
  }
  absl::Status status;
  for (size_t i = 0; i < kGroups; ++i) {
    threads[i].join();
    status.Update(statuses[i]);
  }
  return status;
}

TEST_F(MpiProcessTest, SplitsGroupsOfTheSameRanksAtOnce) {
  EXPECT_THAT(RunMpiRanks(2, SplitGroupsAtOnce), Each(IsOk()));
}

TEST_F(MpiProcessTest, ForkedChildThatExitsDoesNotSpeakForItsRank) {
  const auto statuses = RunMpiRanks(2, [](Communicator& communicator) {
    LOCKSTEP_RETURN_IF_ERROR(communicator.Barrier());
    if (communicator.rank() == 1) {
      const pid_t child = fork();
      if (child == 0) std::exit(0);
      int result = -1;
      if (child < 0 || waitpid(child, &result, 0) != child || result != 0) {
        return absl::InternalError(absl::StrCat("the child: ", result));
      }
    }
    return communicator.Barrier();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// Writes a file as it is destroyed.
struct Witness {
  ~Witness() {
    if (!path.empty()) std::ofstream(path) << "destroyed";
  }
  std::string path;
};

// Destroyed after what the mpi backend does at the exit, the last one first.
Witness at_the_end;
std::unique_ptr<Communicator> kept_to_the_end;

TEST_F(MpiProcessTest, GroupOfStaticStorageMayOutliveMpi) {
  const auto path = [](int rank) {
    return absl::StrCat(testing::TempDir(), "/destroyed.", rank);
  };
  const auto statuses =
      RunMpiRanks(2, [&](Communicator& communicator) -> absl::Status {
        LOCKSTEP_ASSIGN_OR_RETURN(kept_to_the_end, JoinMpiGroup());
        at_the_end.path = path(communicator.rank());
        return kept_to_the_end->Barrier();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(std::filesystem::remove(path(rank))) << path(rank);
  }
}

}  // namespace
}  // namespace lockstep
