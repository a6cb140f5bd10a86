// Tests where the ranks of every launcher meet, and what is rejected.
#include "collectives/groups/rendezvous_location.h"

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
#include "collectives/groups/rank_environment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using Variables = std::map<std::string, std::string>;

// Returns a lookup in `set`, which it borrows.
auto In(const Variables& set) {
  return [&set](absl::string_view name) -> std::optional<std::string> {
    const auto found = set.find(std::string(name));
    if (found == set.end()) return std::nullopt;
    return found->second;
  };
}

constexpr ProcessIdentity kLauncher = {.pid = 7, .start_ticks = 100};

absl::StatusOr<RendezvousLocation> Choose(
    const RankEnvironment& environment, const Variables& set,
    const ProcessIdentity& launcher = kLauncher) {
  return ChooseRendezvousLocation(environment, In(set), launcher);
}

// Returns rank 1 of two ranks, both on its host.
RankEnvironment OneHost(RankLauncher launcher) {
  return {.rank = 1,
          .world_size = 2,
          .local_rank = 1,
          .local_world_size = 2,
          .launcher = launcher};
}

RankEnvironment TwoHosts(RankLauncher launcher) {
  RankEnvironment environment = OneHost(launcher);
  environment.world_size = 4;
  return environment;
}

std::string Folder(const RankEnvironment& environment, const Variables& set,
                   const ProcessIdentity& launcher = kLauncher) {
  const absl::StatusOr<RendezvousLocation> place =
      Choose(environment, set, launcher);
  EXPECT_THAT(place, IsOk());
  if (!place.ok()) return "";
  EXPECT_EQ(*place, RendezvousLocation{.folder = place->folder});
  return place->folder;
}

TEST(LaunchedRendezvousTest, TakesTheFileThatIsNamed) {
  for (const RankEnvironment& launched :
       {OneHost(RankLauncher::kLockstep), OneHost(RankLauncher::kSlurm)}) {
    RankEnvironment environment = launched;
    environment.rendezvous = "/proc/7/fd/3";
    const auto place = Choose(environment, {{"LOCKSTEP_MASTER_PORT", "1"}});
    EXPECT_THAT(place,
                IsOkAndHolds(RendezvousLocation{.file = "/proc/7/fd/3"}));
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

// The message asks for the variable that is missing, or names the invalid one.
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
           {RankLauncher::kTorchrun, 29501}}) {  // The agent uses 29500.
    EXPECT_THAT(Choose(TwoHosts(launcher), variables),
                IsOkAndHolds(RendezvousLocation{.address = "node0",
                                                .port = port,
                                                .listen_address = "0.0.0.0",
                                                .token = "secret"}));
    Variables own = variables;
    own["LOCKSTEP_MASTER_PORT"] = "4000";
    EXPECT_EQ(Choose(TwoHosts(launcher), own)->port, 4000);
  }
  // On one host our own variable takes precedence, too.
  EXPECT_THAT(
      Choose(OneHost(RankLauncher::kOpenMpi),
             {{"LOCKSTEP_MASTER_PORT", "4000"}}),
      IsOkAndHolds(RendezvousLocation{.address = "127.0.0.1", .port = 4000}));
}

}  // namespace
}  // namespace lockstep
