#include "collectives/launch/rank_environment.h"

#include <stdlib.h>

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Eq;
using testing::HasSubstr;
using testing::Not;
using testing::Optional;

using Variables = std::map<std::string, std::string>;

absl::StatusOr<std::optional<RankEnvironment>> Read(const Variables& set) {
  return ReadRankEnvironment(
      [&](absl::string_view name) -> std::optional<std::string> {
        const auto found = set.find(std::string(name));
        if (found == set.end()) return std::nullopt;
        return found->second;
      });
}

MATCHER_P5(IsRank, rank, world_size, local_rank, local_world_size, rendezvous,
           "") {
  return arg.rank == rank && arg.world_size == world_size &&
         arg.local_rank == local_rank &&
         arg.local_world_size == local_world_size &&
         arg.rendezvous == rendezvous;
}

TEST(RankEnvironmentTest, NothingWithoutLauncher) {
  EXPECT_THAT(Read({}), IsOkAndHolds(Eq(std::nullopt)));
  EXPECT_THAT(Read({{"HOME", "/"}, {"LOCKSTEP_RENDEZVOUS", "/tmp/r"}}),
              IsOkAndHolds(Eq(std::nullopt)));
}

TEST(RankEnvironmentTest, ReadsOwnLauncher) {
  EXPECT_THAT(Read({{"RANK", "1"},
                    {"WORLD_SIZE", "2"},
                    {"LOCAL_RANK", "1"},
                    {"LOCAL_WORLD_SIZE", "2"},
                    {"LOCKSTEP_RENDEZVOUS", "/proc/7/fd/3"}}),
              IsOkAndHolds(Optional(IsRank(1, 2, 1, 2, "/proc/7/fd/3"))));
}

TEST(RankEnvironmentTest, ReadsTorchrunOnTwoHosts) {
  EXPECT_THAT(Read({{"RANK", "5"},
                    {"WORLD_SIZE", "8"},
                    {"LOCAL_RANK", "1"},
                    {"LOCAL_WORLD_SIZE", "4"}}),
              IsOkAndHolds(Optional(IsRank(5, 8, 1, 4, ""))));
}

TEST(RankEnvironmentTest, TakesOneHostWithoutLocalVariables) {
  EXPECT_THAT(Read({{"RANK", "2"}, {"WORLD_SIZE", "3"}}),
              IsOkAndHolds(Optional(IsRank(2, 3, 2, 3, ""))));
}

TEST(RankEnvironmentTest, ReadsMpirun) {
  EXPECT_THAT(Read({{"OMPI_COMM_WORLD_RANK", "3"},
                    {"OMPI_COMM_WORLD_SIZE", "4"},
                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
              IsOkAndHolds(Optional(IsRank(3, 4, 1, 2, ""))));
}

Variables Srun(const std::string& node, const std::string& tasks_per_node) {
  return {{"SLURM_PROCID", "8"},
          {"SLURM_NTASKS", "11"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", node},
          {"SLURM_STEP_TASKS_PER_NODE", tasks_per_node}};
}

TEST(RankEnvironmentTest, ReadsSrun) {
  EXPECT_THAT(Read({{"SLURM_PROCID", "1"},
                    {"SLURM_NTASKS", "2"},
                    {"SLURM_LOCALID", "1"}}),
              IsOkAndHolds(Optional(IsRank(1, 2, 1, 2, ""))));
  EXPECT_THAT(Read(Srun("0", "4(x2),3")),
              IsOkAndHolds(Optional(IsRank(8, 11, 0, 4, ""))));
  EXPECT_THAT(Read(Srun("1", "4(x2),3")),
              IsOkAndHolds(Optional(IsRank(8, 11, 0, 4, ""))));
  EXPECT_THAT(Read(Srun("2", "4(x2),3")),
              IsOkAndHolds(Optional(IsRank(8, 11, 0, 3, ""))));
}

TEST(RankEnvironmentTest, RejectsBadSlurmTaskList) {
  for (const char* list : {"", "x", "4(x", "0", "99", "4(x2),,3", "4(x2)"}) {
    const auto result = Read(Srun("2", list));
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("SLURM_STEP_TASKS_PER_NODE=\"")))
        << list;
  }
}

TEST(RankEnvironmentTest, ShellInSlurmAllocationIsNoRank) {
  EXPECT_THAT(Read({{"SLURM_NTASKS", "4"}}), IsOkAndHolds(Eq(std::nullopt)));
}

TEST(RankEnvironmentTest, InnerLauncherWins) {
  EXPECT_THAT(Read({{"RANK", "1"},
                    {"WORLD_SIZE", "2"},
                    {"SLURM_PROCID", "0"},
                    {"SLURM_NTASKS", "1"}}),
              IsOkAndHolds(Optional(IsRank(1, 2, 1, 2, ""))));
}

TEST(RankEnvironmentTest, NamesBadVariableAndValue) {
  const struct {
    Variables variables;
    const char* named;
  } kCases[] = {
      {{{"RANK", "one"}, {"WORLD_SIZE", "2"}}, "RANK=\"one\" is not a number"},
      {{{"RANK", ""}, {"WORLD_SIZE", "2"}}, "RANK=\"\" is not a number"},
      {{{"RANK", "1.5"}, {"WORLD_SIZE", "2"}}, "RANK=\"1.5\""},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2x"}}, "WORLD_SIZE=\"2x\""},
      {{{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}, "\"99999999999\""},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}},
       "RANK=\"2\" is not between 0 and 1"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK=\"-1\""},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE=\"0\""},
      {{{"RANK", "0"}}, "RANK=\"0\" is set but WORLD_SIZE is not"},
      {{{"WORLD_SIZE", "2"}}, "WORLD_SIZE=\"2\" is set but RANK is not"},
      {{{"SLURM_PROCID", "0"}}, "SLURM_PROCID=\"0\" is set but SLURM_NTASKS"},
      {{{"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK is not"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}},
       "LOCAL_RANK=\"2\""},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}},
       "LOCAL_WORLD_SIZE=\"3\""},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(Read(test.variables),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(test.named), Not(HasSubstr("\n")))));
  }
}

TEST(RankEnvironmentTest, ReadsProcessEnvironment) {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "5", 1);
  EXPECT_THAT(ReadRankEnvironment(),
              IsOkAndHolds(Optional(IsRank(0, 5, 0, 5, ""))));
}

}  // namespace
}  // namespace lockstep
