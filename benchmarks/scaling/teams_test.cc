// Tests the commands that start ranks.
#include "benchmarks/scaling/teams.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "benchmarks/harness/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::EndsWith;

TEST(CommandOfTest, StartsTheRanksOfEveryBackend) {
  const auto text = [](RankKind ranks) {
    TeamCommand command =
        CommandOf({.flags = {"--lr=1"}, .mpi_folder = "/m", .cores = 2},
                  {.configuration = {.world_size = 2, .ranks = ranks}},
                  "scaling", "name");
    std::erase(command.argv, "--allow-run-as-root");  // If we are root.
    return absl::StrCat(absl::StrJoin(command.argv, " "), "; ", command.nproc,
                        " ", command.world_size);
  };
  EXPECT_EQ(text(RankKind::kProcesses),
            "scaling --lr=1 --worker=name --backend=processes --world_sizes=2; "
            "2 2");
  EXPECT_THAT(text(RankKind::kApart), EndsWith("=apart --world_sizes=2; 2 2"));
  EXPECT_EQ(text(RankKind::kThreads),
            "scaling --lr=1 --worker=name --backend=threads --world_sizes=2; "
            "1 2");
  EXPECT_EQ(text(RankKind::kMpi),
            "mpirun --oversubscribe -np 2 --bind-to none scaling --lr=1 "
            "--worker=name --backend=mpi --world_sizes=2; 1 2");
}

}  // namespace
}  // namespace lockstep::benchmarks
