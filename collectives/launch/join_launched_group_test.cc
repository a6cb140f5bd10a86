// What JoinLaunchedGroup refuses; launchers_test.cc joins.
#include "collectives/launch/join_launched_group.h"

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "collectives/launch/rank_environment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(JoinLaunchedGroupTest, SaysWhichBackendsAreForSeveralHosts) {
  for (const RankLauncher launcher :
       {RankLauncher::kLockstep, RankLauncher::kTorchrun,
        RankLauncher::kVariables, RankLauncher::kOpenMpi, RankLauncher::kMpich,
        RankLauncher::kSlurm}) {
    EXPECT_THAT(JoinLaunchedGroup({.rank = 0,
                                   .world_size = 4,
                                   .local_rank = 0,
                                   .local_world_size = 2,
                                   .rendezvous = "/nonexistent",
                                   .launcher = launcher}),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("of 4 ranks only 2 are on this host"),
                               HasSubstr("mpi or the nccl backend"))));
  }
}

}  // namespace
}  // namespace lockstep
