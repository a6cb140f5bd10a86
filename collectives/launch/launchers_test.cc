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
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/launch/create_group.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/launch/testing/child_process.h"
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

TEST(LauncherProcessTest, IsTheParentOfARankAndAboveItsShells) {
  const std::vector<std::string> shells = {
      "sh", "-c", absl::StrCat("sh -c '", kPrintLauncher, "; true'; true")};
  for (const auto& command : {{kRank, "launcher"}, shells}) {
    ChildProcess rank(command, {"RANK=1", "RUN=a"});
    EXPECT_EQ(rank.Wait(), 0);
    EXPECT_EQ(rank.out(), ThisProcessText());
  }
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
  EXPECT_EQ(*place, MeetingPlace{.folder = place->folder});
  return place->folder;
}

TEST(LaunchedRendezvousTest, TakesTheFileThatIsNamed) {
  for (const RankEnvironment& launched :
       {OneHost(RankLauncher::kLockstep), TwoHosts(RankLauncher::kSlurm)}) {
    RankEnvironment environment = launched;
    environment.rendezvous = "/proc/7/fd/3";
    const auto place = Choose(environment, {{"LOCKSTEP_MASTER_PORT", "1"}});
    EXPECT_THAT(place, IsOkAndHolds(MeetingPlace{.file = "/proc/7/fd/3"}));
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

// What cannot be chosen is asked for, or named.
TEST(LaunchedRendezvousTest, SaysWhatIsMissingOrWrong) {
  const RankEnvironment variables = OneHost(RankLauncher::kVariables);
  const RankEnvironment slurm = TwoHosts(RankLauncher::kSlurm);
  const auto path = [](const char* name) {
    return AllOf(StartsWith(name), HasSubstr("LOCKSTEP_RENDEZVOUS"));
  };
  const auto port = AllOf(HasSubstr("of 4 ranks only 2 are on this host"),
                          HasSubstr("MASTER_ADDR"));
  struct Case {
    RankEnvironment environment;
    Variables set;
    testing::Matcher<std::string> message;
  };
  std::vector<Case> cases = {
      {variables, {}, path("MASTER_ADDR")},
      {variables, {{"MASTER_ADDR", "here"}}, path("MASTER_PORT")},
      {OneHost(RankLauncher::kSlurm),
       {{"SLURM_STEP_ID", "0"}},
       path("SLURM_JOB_ID")},
      {slurm, {}, port},
      {slurm, {{"MASTER_ADDR", "node0"}}, port},
      {slurm, {{"MASTER_PORT", "29500"}}, port},
      {slurm, {{"LOCKSTEP_MASTER_PORT", "29500"}}, port},
  };
  for (const std::string name : {"MASTER_PORT", "LOCKSTEP_MASTER_PORT"}) {
    for (const std::string bad : {"", "x", "0", "-1", "65536", "1.5"}) {
      cases.push_back({slurm,
                       {{"MASTER_ADDR", "node0"}, {name, bad}},
                       absl::StrCat("environment variable ", name, "=\"", bad,
                                    "\" is not a port")});
    }
  }
  for (const Case& test : cases) {
    EXPECT_THAT(Choose(test.environment, test.set),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(test.message, Not(HasSubstr("\n")))));
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
    EXPECT_THAT(Choose(TwoHosts(launcher), variables),
                IsOkAndHolds(MeetingPlace{.address = "node0",
                                          .port = port,
                                          .listen_address = "0.0.0.0",
                                          .token = "secret"}));
    Variables own = variables;
    own["LOCKSTEP_MASTER_PORT"] = "4000";
    EXPECT_EQ(Choose(TwoHosts(launcher), own)->port, 4000);
  }
}

TEST(LaunchedRendezvousTest, OwnPortIsTakenOnOneHostToo) {
  EXPECT_THAT(Choose(OneHost(RankLauncher::kOpenMpi),
                     {{"LOCKSTEP_MASTER_PORT", "4000"}}),
              IsOkAndHolds(MeetingPlace{.address = "127.0.0.1", .port = 4000}));
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

// Two ranks join the group of a launcher, and sum up their numbers.
class LaunchersTest : public testing::Test {
 protected:
  LaunchersTest()
      : folder_(absl::StrCat(testing::TempDir(), "/launchers_test")) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~LaunchersTest() override { std::filesystem::remove_all(folder_); }

  static std::vector<std::string> WithRank(std::vector<std::string> command) {
    command.push_back(std::filesystem::absolute(kRank).string());
    command.push_back("sum");
    return command;
  }

  // What a launcher is started with, so that what it leaves shows.
  std::vector<std::string> Environment() const { return {"TMPDIR=" + folder_}; }

  // Of both ranks; and no folder or file of the rendezvous is left.
  void ExpectSums(const std::string& out) const {
    const std::vector<std::string> lines =
        absl::StrSplit(out, '\n', absl::SkipEmpty());
    EXPECT_THAT(lines, SizeIs(2));
    EXPECT_THAT(lines, Each(HasSubstr("sum 3")));
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      EXPECT_THAT(entry.path().string(), Not(HasSubstr("lockstep-")));
    }
  }

  void ExpectRuns(const std::vector<std::string>& command) const {
    ChildProcess launcher(command, Environment());
    EXPECT_EQ(launcher.Wait(kDeadline), 0) << launcher.err();
    ExpectSums(launcher.out());
  }

  const std::string folder_;
};

TEST_F(LaunchersTest, OurOwn) {
  ExpectRuns(WithRank({kLaunch, "--nproc=2", "--"}));
}

TEST_F(LaunchersTest, MpirunAlsoWithAShellBeforeEachRank) {
  std::vector<std::string> command = FindMpirun(2);
  if (command.empty()) GTEST_SKIP() << "no mpirun of Open MPI on this machine";
  ExpectRuns(WithRank(command));
  // Not the last command of its shell, so that it does not become the shell.
  command.insert(command.end(),
                 {"sh", "-c", absl::StrJoin(WithRank({}), " ") + " && true"});
  ExpectRuns(command);
}

TEST_F(LaunchersTest, Torchrun) {
  static const std::vector<std::string> torchrun = FindTorchrun(2);
  if (torchrun.empty()) GTEST_SKIP() << "no torchrun on this machine";
  ExpectRuns(WithRank(torchrun));
}

// Ranks that the test starts, with the variables that a launcher would set.
TEST_F(LaunchersTest, Environments) {
  const std::vector<std::string> launchers[] = {
      {"SLURM_JOB_ID=7", "SLURM_STEP_ID=1", "SLURM_NTASKS=2",
       "SLURM_STEP_TASKS_PER_NODE=2", "SLURM_PROCID=$", "SLURM_LOCALID=$"},
      {"PMI_RANK=$", "PMI_SIZE=2", "MPI_LOCALRANKID=$", "MPI_LOCALNRANKS=2"},
      {"RANK=$", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500"},
  };
  for (const std::vector<std::string>& variables : launchers) {
    std::vector<std::unique_ptr<ChildProcess>> ranks;
    for (const std::string rank : {"0", "1"}) {
      std::vector<std::string> environment = Environment();
      for (const std::string& variable : variables) {
        environment.push_back(absl::StrReplaceAll(variable, {{"$", rank}}));
      }
      ranks.push_back(
          std::make_unique<ChildProcess>(WithRank({}), environment));
    }
    std::string out;
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->Wait(kDeadline), 0) << rank->err();
      absl::StrAppend(&out, rank->out());
    }
    ExpectSums(out);
  }
}

}  // namespace
}  // namespace lockstep
