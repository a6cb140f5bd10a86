// Where ranks meet, for every launcher, and what is refused; launchers_test.cc
// has real launchers.
#include "collectives/launch/launched_group.h"

#include <stdlib.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/process.h"
#include "base/status_matchers.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/launch/testing/child_process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr char kProgram[] = "collectives/launch/testing/print_launcher_process";

std::string ThisProcessText() {
  const ProcessIdentity self = ThisProcess();
  return absl::StrCat(self.pid, " ", self.start_ticks, "\n");
}

TEST(LauncherProcessTest, IsTheParentOfAPlainRank) {
  ChildProcess rank({kProgram}, {"RANK=1", "RUN=a"});
  EXPECT_EQ(rank.Wait(), 0);
  EXPECT_EQ(rank.out(), ThisProcessText());
}

TEST(LauncherProcessTest, IsAboveShellsOfTheRank) {
  const std::string shells = absl::StrCat("sh -c '", kProgram, "; true'; true");
  ChildProcess rank({"sh", "-c", shells}, {"RANK=1", "RUN=a"});
  EXPECT_EQ(rank.Wait(), 0);
  EXPECT_EQ(rank.out(), ThisProcessText());
}

TEST(LauncherProcessTest, IsTheInnerOfTwo) {
  // The shell is rank 0 of run a, and starts rank 0 of run b.
  ChildProcess outer(
      {"sh", "-c", absl::StrCat("echo $$; RUN=b ", kProgram, "; true")},
      {"RANK=0", "RUN=a"});
  EXPECT_EQ(outer.Wait(), 0);
  const std::string shell = absl::StrCat(outer.pid(), "\n", outer.pid(), " ");
  EXPECT_EQ(outer.out().substr(0, shell.size()), shell);
}

TEST(LauncherProcessTest, IsTheParentIfNothingMarksARank) {
  unsetenv("RANK");
  unsetenv("RUN");
  const std::vector<absl::string_view> names = {"RANK", "RUN"};
  EXPECT_EQ(FindLauncherProcess(names).pid, getppid());
  EXPECT_EQ(FindLauncherProcess({}).pid, getppid());
}

using Variables = std::map<std::string, std::string>;

constexpr ProcessIdentity kLauncher = {.pid = 7, .start_ticks = 100};

absl::StatusOr<MeetingPlace> Choose(
    const RankEnvironment& environment, const Variables& set,
    const ProcessIdentity& launcher = kLauncher) {
  return ChooseMeetingPlace(
      environment,
      [&](absl::string_view name) -> std::optional<std::string> {
        const auto found = set.find(std::string(name));
        if (found == set.end()) return std::nullopt;
        return found->second;
      },
      launcher);
}

RankEnvironment OneHost(RankLauncher launcher) {
  return {.rank = 1,
          .world_size = 2,
          .local_rank = 1,
          .local_world_size = 2,
          .launcher = launcher};
}

RankEnvironment TwoHosts(RankLauncher launcher) {
  return {.rank = 2,
          .world_size = 4,
          .local_rank = 0,
          .local_world_size = 2,
          .launcher = launcher};
}

std::string Folder(const RankEnvironment& environment, const Variables& set,
                   const ProcessIdentity& launcher = kLauncher) {
  const absl::StatusOr<MeetingPlace> place = Choose(environment, set, launcher);
  EXPECT_THAT(place, IsOk());
  if (!place.ok()) return "";
  EXPECT_EQ(place->file, "");
  EXPECT_EQ(place->address, "");
  return place->folder;
}

TEST(LaunchedRendezvousTest, TakesTheFileThatIsNamed) {
  for (const RankEnvironment& launched :
       {OneHost(RankLauncher::kLockstep), TwoHosts(RankLauncher::kSlurm)}) {
    RankEnvironment environment = launched;
    environment.rendezvous = "/proc/7/fd/3";
    const auto place = Choose(environment, {{"LOCKSTEP_MASTER_PORT", "1"}});
    ASSERT_THAT(place, IsOk());
    EXPECT_EQ(place->file, "/proc/7/fd/3");
    EXPECT_EQ(place->folder, "");
    EXPECT_EQ(place->address, "");
  }
}

TEST(LaunchedRendezvousTest, AllRanksOfAHostGoToOneFolder) {
  const Variables variables = {
      {"TORCHELASTIC_RUN_ID", "none"}, {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "29500"},        {"PMIX_NAMESPACE", "3245342721"},
      {"SLURM_JOB_ID", "12"},          {"SLURM_STEP_ID", "0"}};
  std::set<std::string> folders;
  for (const auto& [launcher, name] : std::map<RankLauncher, std::string>{
           {RankLauncher::kTorchrun, "torchrun"},
           {RankLauncher::kVariables, "run"},
           {RankLauncher::kOpenMpi, "mpirun"},
           {RankLauncher::kMpich, "mpirun"},
           {RankLauncher::kSlurm, "srun"}}) {
    RankEnvironment environment = OneHost(launcher);
    const std::string folder = Folder(environment, variables);
    EXPECT_THAT(folder, StartsWith(absl::StrCat("/tmp/lockstep-", geteuid(),
                                                "-", name, "-")));
    EXPECT_EQ(folder.size(), folder.rfind('-') + 1 + 16);
    environment.rank = environment.local_rank = 0;
    EXPECT_EQ(Folder(environment, variables), folder);
    EXPECT_TRUE(folders.insert(folder).second) << folder;
  }
}

TEST(LaunchedRendezvousTest, EachRunHasAFolderOfItsOwn) {
  const struct {
    RankLauncher launcher;
    Variables variables;
    bool by_process;
  } kCases[] = {
      {RankLauncher::kTorchrun,
       {{"TORCHELASTIC_RUN_ID", "none"},
        {"TORCHELASTIC_RESTART_COUNT", "0"},
        {"MASTER_PORT", "29500"}},
       true},
      {RankLauncher::kOpenMpi, {{"PMIX_NAMESPACE", "1"}}, true},
      {RankLauncher::kMpich, {}, true},
      {RankLauncher::kSlurm,
       {{"SLURM_JOB_ID", "12"}, {"SLURM_STEP_ID", "0"}},
       false},
      {RankLauncher::kVariables,
       {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1"}},
       false},
  };
  for (const auto& test : kCases) {
    const RankEnvironment environment = OneHost(test.launcher);
    const std::string folder = Folder(environment, test.variables);
    for (const auto& [name, value] : test.variables) {
      Variables other = test.variables;
      other[name] += "1";
      EXPECT_NE(Folder(environment, other), folder) << name;
    }
    for (const ProcessIdentity& other :
         {ProcessIdentity{.pid = 8, .start_ticks = 100},
          ProcessIdentity{.pid = 7, .start_ticks = 101}}) {
      EXPECT_EQ(Folder(environment, test.variables, other) != folder,
                test.by_process);
    }
    Variables elsewhere = test.variables;
    elsewhere["TMPDIR"] = "/scratch";
    EXPECT_EQ(Folder(environment, elsewhere),
              "/scratch" + folder.substr(std::string("/tmp").size()));
    elsewhere["TMPDIR"] = "";
    EXPECT_EQ(Folder(environment, elsewhere), folder);
  }
}

TEST(LaunchedRendezvousTest, AsksForAPathIfNothingTellsRunsApart) {
  const struct {
    RankLauncher launcher;
    Variables variables;
    const char* named;
  } kCases[] = {
      {RankLauncher::kVariables, {}, "MASTER_ADDR"},
      {RankLauncher::kVariables, {{"MASTER_ADDR", "here"}}, "MASTER_PORT"},
      {RankLauncher::kSlurm, {{"SLURM_STEP_ID", "0"}}, "SLURM_JOB_ID"},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(
        Choose(OneHost(test.launcher), test.variables),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(StartsWith(test.named), HasSubstr("LOCKSTEP_RENDEZVOUS"),
                       Not(HasSubstr("\n")))));
  }
}

TEST(LaunchedRendezvousTest, SeveralHostsMeetAtAPort) {
  const Variables variables = {{"MASTER_ADDR", "node0"},
                               {"MASTER_PORT", "29500"},
                               {"LOCKSTEP_TOKEN", "secret"},
                               {"LOCKSTEP_LISTEN_ADDRESS", "0.0.0.0"}};
  for (const auto& [launcher, port] : std::map<RankLauncher, int>{
           {RankLauncher::kVariables, 29500},
           {RankLauncher::kOpenMpi, 29500},
           {RankLauncher::kMpich, 29500},
           {RankLauncher::kSlurm, 29500},
           {RankLauncher::kTorchrun, 29501}}) {  // Its agent has the first.
    const auto place = Choose(TwoHosts(launcher), variables);
    ASSERT_THAT(place, IsOk());
    EXPECT_EQ(place->address, "node0");
    EXPECT_EQ(place->port, port);
    EXPECT_EQ(place->token, "secret");
    EXPECT_EQ(place->listen_address, "0.0.0.0");
    EXPECT_EQ(place->folder, "");
    Variables own = variables;
    own["LOCKSTEP_MASTER_PORT"] = "4000";
    EXPECT_EQ(Choose(TwoHosts(launcher), own)->port, 4000);
  }
}

TEST(LaunchedRendezvousTest, OwnPortIsTakenOnOneHostToo) {
  const auto place = Choose(OneHost(RankLauncher::kOpenMpi),
                            {{"LOCKSTEP_MASTER_PORT", "4000"}});
  ASSERT_THAT(place, IsOk());
  EXPECT_EQ(place->address, "127.0.0.1");
  EXPECT_EQ(place->port, 4000);
  EXPECT_EQ(place->folder, "");
}

TEST(LaunchedRendezvousTest, SaysWhatSeveralHostsNeed) {
  for (const Variables& variables :
       {Variables{}, Variables{{"MASTER_ADDR", "node0"}},
        Variables{{"MASTER_PORT", "29500"}},
        Variables{{"LOCKSTEP_MASTER_PORT", "29500"}}}) {
    EXPECT_THAT(
        Choose(TwoHosts(RankLauncher::kSlurm), variables),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("of 4 ranks only 2 are on this host"),
                       HasSubstr("MASTER_ADDR"), Not(HasSubstr("\n")))));
  }
}

TEST(LaunchedRendezvousTest, NamesWhatIsNoPort) {
  for (const std::string name : {"MASTER_PORT", "LOCKSTEP_MASTER_PORT"}) {
    for (const std::string bad : {"", "x", "0", "-1", "65536", "1.5"}) {
      EXPECT_THAT(Choose(TwoHosts(RankLauncher::kSlurm),
                         {{"MASTER_ADDR", "node0"}, {name, bad}}),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           absl::StrCat("environment variable ", name, "=\"",
                                        bad, "\" is not a port")));
    }
  }
}

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
