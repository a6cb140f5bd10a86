// Where ranks meet, for every launcher, and what is refused; groups by the name
// of their backend; and the same program as the ranks of our launcher, of
// torchrun, of mpirun and, as far as its environment goes, of srun. A launcher
// that this machine does not have is a skip that says so.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cores.h"
#include "base/process.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/launch/create_group.h"
#include "collectives/launch/launched_group.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/launch/testing/child_process.h"
#include "collectives/launch/testing/find_launchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

constexpr char kRank[] = "collectives/launch/testing/rank";
constexpr char kPrintLauncher[] = "collectives/launch/testing/rank launcher";

std::string ThisProcessText() {
  const ProcessIdentity self = ThisProcess();
  return absl::StrCat(self.pid, " ", self.start_ticks, "\n");
}

TEST(LauncherProcessTest, IsTheParentOfAPlainRank) {
  ChildProcess rank({kRank, "launcher"}, {"RANK=1", "RUN=a"});
  EXPECT_EQ(rank.Wait(), 0);
  EXPECT_EQ(rank.out(), ThisProcessText());
}

TEST(LauncherProcessTest, IsAboveShellsOfTheRank) {
  const std::string shells =
      absl::StrCat("sh -c '", kPrintLauncher, "; true'; true");
  ChildProcess rank({"sh", "-c", shells}, {"RANK=1", "RUN=a"});
  EXPECT_EQ(rank.Wait(), 0);
  EXPECT_EQ(rank.out(), ThisProcessText());
}

TEST(LauncherProcessTest, IsTheInnerOfTwo) {
  // The shell is rank 0 of run a, and starts rank 0 of run b.
  ChildProcess outer(
      {"sh", "-c", absl::StrCat("echo $$; RUN=b ", kPrintLauncher, "; true")},
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

TEST(CreateGroupTest, NamesWhatItCannotCreate) {
  EXPECT_THAT(CreateGroup("gloo"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "unknown backend 'gloo': must be threads, processes, "
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

// LaunchersTest has runs of two.
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

constexpr char kLaunch[] = "collectives/launch/launch";

// torchrun takes seconds to start, and longer on a busy machine.
constexpr absl::Duration kDeadline = absl::Seconds(100);

// What a rank does, and the line that each of two ranks then prints.
struct Program {
  const char* name;
  std::string argument;
  std::string line;

  friend void PrintTo(const Program& program, std::ostream* out) {
    *out << program.name;
  }
};

class LaunchersTest : public testing::TestWithParam<Program> {
 protected:
  LaunchersTest()
      : folder_(absl::StrCat(testing::TempDir(), "/launchers_test")) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~LaunchersTest() override { std::filesystem::remove_all(folder_); }

  static std::vector<std::string> WithRank(std::vector<std::string> command) {
    command.push_back(std::filesystem::absolute(kRank).string());
    command.push_back(GetParam().argument);
    return command;
  }

  // What a launcher is started with, so that what it leaves shows.
  std::vector<std::string> Environment() const { return {"TMPDIR=" + folder_}; }

  void ExpectLines(const std::string& out, int ranks) const {
    const std::vector<std::string> lines =
        absl::StrSplit(out, '\n', absl::SkipEmpty());
    EXPECT_THAT(lines, SizeIs(ranks));
    EXPECT_THAT(lines, Each(HasSubstr(GetParam().line)));
  }

  // No folder or file of the rendezvous is left.
  void ExpectNothingLeft() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      EXPECT_THAT(entry.path().string(), Not(HasSubstr("lockstep-")));
    }
  }

  void ExpectRuns(const std::vector<std::string>& command) const {
    ChildProcess launcher(command, Environment());
    EXPECT_EQ(launcher.Wait(kDeadline), 0) << launcher.err();
    ExpectLines(launcher.out(), 2);
    ExpectNothingLeft();
  }

  const std::string folder_;
};

TEST_P(LaunchersTest, OurOwn) {
  ExpectRuns(WithRank({kLaunch, "--nproc=2", "--"}));
}

TEST_P(LaunchersTest, Mpirun) {
  std::vector<std::string> command = FindMpirun(2);
  if (command.empty()) GTEST_SKIP() << "no mpirun of Open MPI on this machine";
  ExpectRuns(WithRank(command));
}

TEST_P(LaunchersTest, MpirunWithAShellBeforeEachRank) {
  std::vector<std::string> command = FindMpirun(2);
  if (command.empty()) GTEST_SKIP() << "no mpirun of Open MPI on this machine";
  // Not the last command of its shell, so that it does not become the shell.
  command.insert(command.end(),
                 {"sh", "-c", absl::StrJoin(WithRank({}), " ") + " && true"});
  ExpectRuns(command);
}

TEST_P(LaunchersTest, Torchrun) {
  static const std::vector<std::string> torchrun = FindTorchrun(2);
  if (torchrun.empty()) GTEST_SKIP() << "no torchrun on this machine";
  ExpectRuns(WithRank(torchrun));
}

TEST(FindMpirunTest, KeepsTheMemoryOfRanksInTheTestsFolder) {
  std::vector<std::string> command = FindMpirun(2);
  if (command.empty()) GTEST_SKIP() << "no mpirun of Open MPI on this machine";
  command.insert(command.end(),
                 {"printenv", "OMPI_MCA_btl_vader_backing_directory"});
  ChildProcess launcher(command);
  EXPECT_EQ(launcher.Wait(kDeadline), 0) << launcher.err();
  EXPECT_EQ(launcher.out(),
            absl::StrCat(testing::TempDir(), "\n", testing::TempDir(), "\n"));
}

// Ranks of our own making, with the variables that a launcher would set.
class RanksByHand {
 public:
  void Start(const std::vector<std::string>& command,
             const std::vector<std::string>& environment) {
    ranks_.push_back(std::make_unique<ChildProcess>(command, environment));
  }

  // The output of all, once they have ended; expects success.
  std::string Out() {
    std::string out;
    for (const std::unique_ptr<ChildProcess>& rank : ranks_) {
      EXPECT_EQ(rank->Wait(kDeadline), 0) << rank->err();
      absl::StrAppend(&out, rank->out());
    }
    return out;
  }

 private:
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
};

TEST_P(LaunchersTest, EnvironmentOfSrun) {
  RanksByHand ranks;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::string> environment = Environment();
    environment.insert(
        environment.end(),
        {"SLURM_JOB_ID=7", "SLURM_STEP_ID=1", "SLURM_NTASKS=2",
         "SLURM_STEP_TASKS_PER_NODE=2", absl::StrCat("SLURM_PROCID=", rank),
         absl::StrCat("SLURM_LOCALID=", rank)});
    ranks.Start(WithRank({}), environment);
  }
  ExpectLines(ranks.Out(), 2);
  ExpectNothingLeft();
}

TEST_P(LaunchersTest, EnvironmentOfMpich) {
  RanksByHand ranks;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::string> environment = Environment();
    environment.insert(
        environment.end(),
        {absl::StrCat("PMI_RANK=", rank), "PMI_SIZE=2",
         absl::StrCat("MPI_LOCALRANKID=", rank), "MPI_LOCALNRANKS=2"});
    ranks.Start(WithRank({}), environment);
  }
  ExpectLines(ranks.Out(), 2);
  ExpectNothingLeft();
}

TEST_P(LaunchersTest, EnvironmentByHand) {
  RanksByHand ranks;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::string> environment = Environment();
    environment.insert(environment.end(),
                       {absl::StrCat("RANK=", rank), "WORLD_SIZE=2",
                        "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500"});
    ranks.Start(WithRank({}), environment);
  }
  ExpectLines(ranks.Out(), 2);
  ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(Programs, LaunchersTest,
                         testing::Values(Program{"Rendezvous", "meet",
                                                 "met r0,r1"},
                                         Program{"Group", "sum", "sum 3"}),
                         [](const testing::TestParamInfo<Program>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace lockstep
