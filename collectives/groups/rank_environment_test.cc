// Tests what is read from the environment, and what is rejected, for every
// launcher.
#include "collectives/groups/rank_environment.h"

#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

}  // namespace
}  // namespace lockstep
