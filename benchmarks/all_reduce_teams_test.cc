// The commands that start teams.
#include "benchmarks/all_reduce_teams.h"

#include <string>
#include <utility>

#include "benchmarks/all_reduce_plan.h"
#include "benchmarks/rank_team.h"
#include "collectives/algorithm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

TeamSetting Setting() {
  return {.folder = "/bin/there", .store = "/store", .cores = 2, .timeout = {}};
}

TeamCommand Command(const Team& team, int world_size) {
  return CommandOf(Setting(), team, world_size, "name");
}

TEST(CommandOfTest, LaunchesOneProcessForEachRank) {
  const TeamCommand command =
      Command({TeamKind::kProcesses, Algorithm::kRing}, 3);
  EXPECT_THAT(command.argv, ElementsAre("/bin/there/allreduce", "--worker=name",
                                        "--worker_kind=processes",
                                        "--algorithm=ring", "--world_size=3"));
  EXPECT_EQ(command.nproc, 3);
  EXPECT_EQ(command.connections, 3);
  EXPECT_EQ(command.world_size, 3);
}

TEST(CommandOfTest, LaunchesOneProcessForAllThreads) {
  const TeamCommand command = Command({TeamKind::kThreads}, 3);
  EXPECT_EQ(command.nproc, 1);
  EXPECT_EQ(command.connections, 3);
  EXPECT_EQ(command.world_size, 3);
}

TEST(CommandOfTest, HasOneCopierForAllRanks) {
  const TeamCommand command = Command({TeamKind::kCopy}, 3);
  EXPECT_THAT(command.argv, Contains("--worker_kind=copy"));
  EXPECT_THAT(command.argv, Contains("--world_size=3"));
  EXPECT_EQ(command.nproc, 1);
  EXPECT_EQ(command.connections, 1);
  EXPECT_EQ(command.world_size, 1);
}

TEST(CommandOfTest, LeavesMpiRanksToMpirun) {
  for (const auto& [kind, program] :
       {std::pair(TeamKind::kOpenMpi, "/bin/there/allreduce_peer_mpi"),
        std::pair(TeamKind::kMpi, "/bin/there/allreduce_rank_mpi")}) {
    const TeamCommand command = Command({kind}, 2);
    EXPECT_EQ(command.argv[0], "mpirun");
    EXPECT_THAT(command.argv, AllOf(Contains("--oversubscribe"), Contains("2"),
                                    Contains(program), Contains("name")));
    EXPECT_EQ(command.nproc, 1);
    EXPECT_EQ(command.connections, 2);
    EXPECT_EQ(command.world_size, 2);
  }
}

TEST(CommandOfTest, AsksMpiToYieldWhereRanksShareCores) {
  const std::pair<std::string, std::string> yields = {
      "OMPI_MCA_mpi_yield_when_idle", "1"};
  EXPECT_THAT(Command({TeamKind::kOpenMpi}, 2).environment,
              Not(Contains(yields)));
  EXPECT_THAT(Command({TeamKind::kOpenMpi}, 3).environment, Contains(yields));
}

TEST(CommandOfTest, TellsGlooWhereToMeet) {
  const TeamCommand command = Command({TeamKind::kGloo}, 2);
  EXPECT_THAT(command.argv,
              ElementsAre("/bin/there/allreduce_peer_gloo", "name", "/store"));
  EXPECT_EQ(command.nproc, 2);
}

}  // namespace
}  // namespace lockstep
