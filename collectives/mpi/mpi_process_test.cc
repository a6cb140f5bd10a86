// What threads, a fork and the exit of a process do to its groups.
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
#include "absl/strings/str_cat.h"
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
