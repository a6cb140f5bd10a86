#include "collectives/groups/create_group.h"

#include <stdlib.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/process.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/groups/rank_environment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

// A rendezvous file set by a launcher of one host is ignored if there are
// several hosts.
TEST(JoinLaunchedGroupTest, SeveralHostsNeedAnAddress) {
  for (const RankLauncher launcher :
       {RankLauncher::kLockstep, RankLauncher::kTorchrun,
        RankLauncher::kVariables, RankLauncher::kOpenMpi, RankLauncher::kMpich,
        RankLauncher::kSlurm}) {
    const RankEnvironment environment = {.rank = 1,
                                         .world_size = 4,
                                         .local_rank = 1,
                                         .local_world_size = 2,
                                         .rendezvous = "/nonexistent",
                                         .launcher = launcher};
    EXPECT_THAT(JoinLaunchedGroup(environment),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("of 4 ranks only 2 are on this host"),
                               HasSubstr("set MASTER_ADDR"))));
  }
}

TEST(CreateGroupTest, NamesWhatItCannotCreate) {
  EXPECT_THAT(
      CreateGroup("gloo"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "unknown backend 'gloo': must be threads, processes, tcp, "
               "mpi or nccl"));
  for (const char* backend : {"mpi", "nccl"}) {
    EXPECT_THAT(CreateGroup(backend),
                StatusIs(absl::StatusCode::kUnimplemented,
                         HasSubstr(absl::StrCat("//collectives/", backend, ":",
                                                backend, "_group"))));
  }
  EXPECT_THAT(CreateGroup("threads", -1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "world size -1 is negative"));
  EXPECT_THAT(CreateGroup("processes"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("no launcher started this process")));
}

TEST(CreateGroupTest, ThreadsAreAsManyAsAskedFor) {
  for (const auto& [asked, got] :
       {std::pair(3, 3), {0, std::min(UsableCores(), kMaxWorldSize)}}) {
    const absl::StatusOr<LocalRanks> ranks = CreateGroup("threads", asked);
    ASSERT_THAT(ranks, IsOkAndHolds(SizeIs(got)));
    for (int rank = 0; rank < got; ++rank) {
      EXPECT_EQ((*ranks)[rank]->rank(), rank);
      EXPECT_EQ((*ranks)[rank]->world_size(), got);
    }
  }
}

// LaunchersTest runs two ranks.
TEST(CreateGroupTest, ProcessesAreAsManyAsTheLauncherSays) {
  const std::string file = absl::StrCat(testing::TempDir(), "/create_group");
  setenv("LOCKSTEP_RENDEZVOUS", file.c_str(), 1);
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  EXPECT_THAT(CreateGroup("processes"), IsOkAndHolds(SizeIs(1)));
  EXPECT_THAT(CreateGroup("processes", 1), IsOkAndHolds(SizeIs(1)));
  EXPECT_THAT(CreateGroup("processes", 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "the group should have 2 ranks, but 1 were started"));
  for (const char* name : {"LOCKSTEP_RENDEZVOUS", "RANK", "WORLD_SIZE"}) {
    unsetenv(name);
  }
}

}  // namespace
}  // namespace lockstep
