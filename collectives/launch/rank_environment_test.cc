// Tests what is read from the environment, where ranks meet, and what is
// rejected, for every launcher; and groups by the name of their backend.
#include "collectives/launch/rank_environment.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/process.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/launch/create_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Eq;
using testing::HasSubstr;
using testing::Not;
using testing::Optional;
using testing::SizeIs;
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

absl::StatusOr<std::optional<RankEnvironment>> Read(const Variables& set) {
  return ReadRankEnvironment(In(set));
}

MATCHER_P5(IsRank, launcher, rank, world_size, local_rank, local_world_size,
           "") {
  return arg.launcher == launcher && arg.rank == rank &&
         arg.world_size == world_size && arg.local_rank == local_rank &&
         arg.local_world_size == local_world_size;
}

// One rank of a run, on any host.
struct Place {
  int rank = 0;
  int world_size = 0;
  int local_rank = 0;
  int local_world_size = 0;
  int host = 0;
  std::vector<int> ranks_of_hosts = {};
};

// Returns every rank of every run of up to three hosts with up to four ranks
// each.
std::vector<Place> AllPlaces() {
  std::vector<std::vector<int>> runs;
  for (int a = 1; a <= 4; ++a) {
    runs.push_back({a});
    for (int b = 1; b <= 4; ++b) {
      runs.push_back({a, b});
      for (int c = 1; c <= 4; ++c) runs.push_back({a, b, c});
    }
  }
  std::vector<Place> places;
  for (const std::vector<int>& run : runs) {
    Place place = {.ranks_of_hosts = run};
    for (const int ranks : run) place.world_size += ranks;
    for (const int ranks : run) {
      place.local_world_size = ranks;
      for (place.local_rank = 0; place.local_rank < ranks; ++place.local_rank) {
        places.push_back(place);
        ++place.rank;
      }
      ++place.host;
    }
  }
  return places;
}

// Returns the place in variables of these names: rank, size, local rank, local
// size.
Variables Named(const std::array<const char*, 4>& names, const Place& p) {
  return {{names[0], absl::StrCat(p.rank)},
          {names[1], absl::StrCat(p.world_size)},
          {names[2], absl::StrCat(p.local_rank)},
          {names[3], absl::StrCat(p.local_world_size)}};
}

Variables Merged(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

Variables Torchrun(const Place& p) {
  return Merged(
      Named({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, p),
      {{"TORCHELASTIC_RUN_ID", "none"}});
}

Variables OpenMpi(const Place& p) {
  return Merged(
      Named({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
            p),
      {{"PMIX_RANK", absl::StrCat(p.rank)}, {"PMIX_NAMESPACE", "1234"}});
}

Variables Mpich(const Place& p) {
  return Named({"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
               p);
}

// Returns the list as Slurm writes it: runs of equal counts are shortened.
std::string TaskList(const std::vector<int>& counts) {
  std::vector<std::string> items;
  for (size_t i = 0; i < counts.size();) {
    size_t end = i;
    while (end < counts.size() && counts[end] == counts[i]) ++end;
    items.push_back(end - i == 1 ? absl::StrCat(counts[i])
                                 : absl::StrCat(counts[i], "(x", end - i, ")"));
    i = end;
  }
  return absl::StrJoin(items, ",");
}

Variables Srun(const Place& p) {
  return {{"SLURM_JOB_ID", "77"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", absl::StrCat(p.rank)},
          {"SLURM_NTASKS", absl::StrCat(p.world_size)},
          {"SLURM_LOCALID", absl::StrCat(p.local_rank)},
          {"SLURM_NODEID", absl::StrCat(p.host)},
          {"SLURM_STEP_TASKS_PER_NODE", TaskList(p.ranks_of_hosts)}};
}

void ExpectPlace(const Variables& variables, RankLauncher launcher,
                 const Place& p) {
  EXPECT_THAT(Read(variables),
              IsOkAndHolds(Optional(IsRank(launcher, p.rank, p.world_size,
                                           p.local_rank, p.local_world_size))))
      << absl::StrJoin(variables, " ", absl::PairFormatter("="));
}

TEST(RankEnvironmentTest, FindsEveryRankOfEveryLauncher) {
  for (const Place& place : AllPlaces()) {
    ExpectPlace(Torchrun(place), RankLauncher::kTorchrun, place);
    ExpectPlace(OpenMpi(place), RankLauncher::kOpenMpi, place);
    ExpectPlace(Mpich(place), RankLauncher::kMpich, place);
    ExpectPlace(Srun(place), RankLauncher::kSlurm, place);
  }
}

TEST(RankEnvironmentTest, TakesTheLauncherThatAnotherStarted) {
  const Place outer = {.rank = 1,
                       .world_size = 2,
                       .local_rank = 0,
                       .local_world_size = 1,
                       .host = 1,
                       .ranks_of_hosts = {1, 1}};
  for (const Place& place : AllPlaces()) {
    for (const Variables& around : {Srun(outer), OpenMpi(outer)}) {
      ExpectPlace(Merged(Torchrun(place), around), RankLauncher::kTorchrun,
                  place);
    }
    ExpectPlace(Merged(OpenMpi(place), Srun(outer)), RankLauncher::kOpenMpi,
                place);
    ExpectPlace(Merged(Mpich(place), Srun(outer)), RankLauncher::kMpich, place);
    // srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE, but no variable about hosts.
    ExpectPlace(
        Merged(Srun(place), {{"PMI_RANK", absl::StrCat(place.rank)},
                             {"PMI_SIZE", absl::StrCat(place.world_size)}}),
        RankLauncher::kSlurm, place);
  }
}

TEST(RankEnvironmentTest, KnowsTheOwnLauncherByItsRendezvous) {
  const auto read = Read({{"RANK", "1"},
                          {"WORLD_SIZE", "2"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"LOCKSTEP_RENDEZVOUS", "/proc/7/fd/3"}});
  EXPECT_THAT(read, IsOkAndHolds(
                        Optional(IsRank(RankLauncher::kLockstep, 1, 2, 1, 2))));
  EXPECT_EQ((*read)->rendezvous, "/proc/7/fd/3");
}

TEST(RankEnvironmentTest, TakesOneHostIfNothingIsSaid) {
  const Place place = {
      .rank = 2, .world_size = 3, .local_rank = 2, .local_world_size = 3};
  ExpectPlace({{"RANK", "2"}, {"WORLD_SIZE", "3"}}, RankLauncher::kVariables,
              place);
  ExpectPlace({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "3"}},
              RankLauncher::kOpenMpi, place);
  ExpectPlace({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}}, RankLauncher::kMpich,
              place);
  // If the local size is set, the ranks of the host may be in any order.
  Place other = place;
  other.local_rank = 1;
  ExpectPlace(OpenMpi(other), RankLauncher::kOpenMpi, other);
  ExpectPlace(
      {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "3"}, {"SLURM_STEP_ID", "4"}},
      RankLauncher::kSlurm, place);
}

TEST(RankEnvironmentTest, ReadsWhateverSlurmSaysOfTasks) {
  for (const Place& place : AllPlaces()) {
    const Variables srun = Srun(place);
    Variables job = srun;
    job["SLURM_TASKS_PER_NODE"] = job["SLURM_STEP_TASKS_PER_NODE"];
    job.erase("SLURM_STEP_TASKS_PER_NODE");
    ExpectPlace(job, RankLauncher::kSlurm, place);
    // The step's numbers take precedence over the job's.
    Variables step = srun;
    step["SLURM_TASKS_PER_NODE"] = "5(x3)";
    step["SLURM_NTASKS_PER_NODE"] = "5";
    step["SLURM_STEP_NUM_TASKS"] = step["SLURM_NTASKS"];
    step["SLURM_NTASKS"] = "15";
    ExpectPlace(step, RankLauncher::kSlurm, place);
    // If only the last node has fewer ranks, one number is enough.
    const std::vector<int>& hosts = place.ranks_of_hosts;
    if (!std::all_of(hosts.begin(), hosts.end() - 1,
                     [&](int ranks) { return ranks == hosts[0]; }) ||
        hosts.back() > hosts[0]) {
      continue;
    }
    Variables number = job;
    number.erase("SLURM_TASKS_PER_NODE");
    number["SLURM_NTASKS_PER_NODE"] = absl::StrCat(hosts[0]);
    ExpectPlace(number, RankLauncher::kSlurm, place);
  }
}

TEST(RankEnvironmentTest, NothingWithoutLauncher) {
  const Variables kCases[] = {
      {},
      {{"HOME", "/"}, {"LOCKSTEP_RENDEZVOUS", "/tmp/r"}},
      {{"LOCAL_RANK", "0"}, {"MASTER_ADDR", "host"}},
      {{"PMIX_RANK", "0"}},
      // Shells inside a Slurm allocation.
      {{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "1"}},
      {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}},
      {{"SLURM_NTASKS", "4"},
       {"SLURM_PROCID", "0"},
       {"SLURM_STEP_ID", "4294967291"}},
      {{"SLURM_NTASKS", "4"},
       {"SLURM_PROCID", "0"},
       {"SLURM_STEP_ID", "4294967290"}},
  };
  for (const Variables& variables : kCases) {
    EXPECT_THAT(Read(variables), IsOkAndHolds(Eq(std::nullopt)));
  }
}

// Replaces every number of every launcher, one at a time, by invalid values.
TEST(RankEnvironmentTest, NamesEveryBadValue) {
  const Place place = {.rank = 2,
                       .world_size = 4,
                       .local_rank = 0,
                       .local_world_size = 2,
                       .host = 1,
                       .ranks_of_hosts = {2, 2}};
  for (const Variables& good :
       {Torchrun(place), OpenMpi(place), Mpich(place), Srun(place)}) {
    for (const auto& [name, value] : good) {
      if (name == "TORCHELASTIC_RUN_ID" || name == "PMIX_RANK" ||
          name == "PMIX_NAMESPACE" || name == "SLURM_JOB_ID" ||
          name == "SLURM_STEP_ID") {
        continue;
      }
      for (const std::string bad :
           {"", "two", "1.5", "-1", "0x1", "2x", "99999999999", "77"}) {
        Variables variables = good;
        variables[name] = bad;
        const auto result = Read(variables);
        if (bad == "77" && name.find("SIZE") != std::string::npos &&
            name.find("LOCAL") == std::string::npos) {
          continue;  // A world may have 77 ranks.
        }
        // For a larger Slurm world, the task list is named, since it
        // contradicts the size.
        const std::string named = bad == "77" && name == "SLURM_NTASKS"
                                      ? "SLURM_STEP_TASKS_PER_NODE=\"2(x2)\""
                                      : absl::StrCat(name, "=\"", bad, "\"");
        EXPECT_THAT(result,
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             AllOf(HasSubstr(named), Not(HasSubstr("\n")))))
            << named;
      }
    }
  }
}

TEST(RankEnvironmentTest, NamesWhatIsMissing) {
  for (const auto& [rank, size, more] :
       {std::array<std::string, 3>{"RANK", "WORLD_SIZE", "HOME"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "HOME"},
        {"PMI_RANK", "PMI_SIZE", "HOME"},
        {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"}}) {
    EXPECT_THAT(
        Read({{rank, "0"}, {more, "0"}}),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr(rank + "=\"0\" is set but " + size + " is not")));
    // SLURM_PROCID marks a process as a rank.
    if (rank == "SLURM_PROCID") continue;
    EXPECT_THAT(
        Read({{size, "2"}}),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr(size + "=\"2\" is set but " + rank + " is not")));
  }
}

TEST(RankEnvironmentTest, NamesContradictions) {
  const Variables srun = {{"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "2"},
                          {"SLURM_NTASKS", "4"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "1"}};
  const struct {
    Variables variables;
    const char* named;
  } kCases[] = {
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}},
       "RANK=\"2\" is not between 0 and 1"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE=\"0\""},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}},
       "LOCAL_WORLD_SIZE=\"3\""},
      {{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}},
       "LOCAL_RANK=\"0\" contradicts RANK=1"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}},
       "LOCAL_RANK=\"2\""},
      {{{"OMPI_COMM_WORLD_RANK", "0"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}},
       "OMPI_COMM_WORLD_LOCAL_RANK=\"1\" contradicts OMPI_COMM_WORLD_RANK=0"},
      {srun, "SLURM_NODEID=\"1\""},
      {Merged(srun, {{"SLURM_NTASKS_PER_NODE", "4"}}), "SLURM_NODEID=\"1\""},
      {Merged(srun, {{"SLURM_STEP_TASKS_PER_NODE", "4"}}),
       "SLURM_STEP_TASKS_PER_NODE=\"4\" has no entry for SLURM_NODEID=1"},
      {Merged(srun, {{"SLURM_STEP_TASKS_PER_NODE", "2,3"}}),
       "SLURM_STEP_TASKS_PER_NODE=\"2,3\" adds up to 5 tasks, not to 4"},
      {Merged(srun, {{"SLURM_TASKS_PER_NODE", "16777215(x16777215)"}}),
       "SLURM_TASKS_PER_NODE=\"16777215(x16777215)\" adds up to"},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(Read(test.variables),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(test.named), Not(HasSubstr("\n")))));
  }
}

TEST(RankEnvironmentTest, RejectsTaskListsThatAreNone) {
  for (const char* list :
       {"", ",", "x", "2(x", "2(x)", "2(x0)", "2(2)", "(x2)", "0", "2(x2)x",
        "2(x2),", ",2", "2,-2", "2(x-1),6", "2(x99999999999)", "2 2"}) {
    EXPECT_THAT(Read({{"SLURM_STEP_ID", "0"},
                      {"SLURM_PROCID", "0"},
                      {"SLURM_NTASKS", "4"},
                      {"SLURM_STEP_TASKS_PER_NODE", list}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("SLURM_STEP_TASKS_PER_NODE=\"",
                                                list, "\" is not a list"))))
        << list;
  }
}

TEST(RankEnvironmentTest, IsThatOfTheProcessWhichCheckNotLaunchedRefuses) {
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  EXPECT_THAT(CheckNotLaunched(), IsOk());
  ASSERT_EQ(setenv("RANK", "0", 1), 0);
  ASSERT_EQ(setenv("WORLD_SIZE", "5", 1), 0);
  EXPECT_THAT(
      ReadRankEnvironment(),
      IsOkAndHolds(Optional(IsRank(RankLauncher::kVariables, 0, 5, 0, 5))));
  EXPECT_THAT(CheckNotLaunched(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("starts its ranks itself")));
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
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

// A rendezvous file set by a launcher of one host is ignored if there are
// several hosts.
TEST(JoinLaunchedGroupTest, SeveralHostsNeedAnAddress) {
  for (const RankLauncher launcher :
       {RankLauncher::kLockstep, RankLauncher::kTorchrun,
        RankLauncher::kVariables, RankLauncher::kOpenMpi, RankLauncher::kMpich,
        RankLauncher::kSlurm}) {
    RankEnvironment environment = TwoHosts(launcher);
    environment.rendezvous = "/nonexistent";
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
