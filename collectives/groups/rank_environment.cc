// Reads the variables of each known launcher by one set of rules.
#include "collectives/groups/rank_environment.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

constexpr int kMaxWorldSize = 1 << 24;

struct VariableNames {
  absl::string_view rank;
  absl::string_view world_size;
  absl::string_view local_rank;
  absl::string_view local_world_size;  // "" for Slurm: see SlurmTasks().
};

constexpr VariableNames kTorchrun = {"RANK", "WORLD_SIZE", "LOCAL_RANK",
                                     "LOCAL_WORLD_SIZE"};
constexpr VariableNames kOpenMpi = {
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr VariableNames kMpich = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
                                  "MPI_LOCALNRANKS"};

absl::Status Bad(absl::string_view name, absl::string_view value,
                 absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable ", name, "=\"", value, "\" ", why));
}

// Returns the number in variable `name`, which must be at least `min` and below
// `end`; nullopt if the variable is not set.
absl::StatusOr<std::optional<int>> ReadNumber(EnvironmentLookup lookup,
                                              absl::string_view name, int min,
                                              int end) {
  const std::optional<std::string> text = lookup(name);
  if (!text.has_value()) return std::nullopt;
  int value = 0;
  if (!absl::SimpleAtoi(*text, &value)) {
    return Bad(name, *text, "is not a number");
  }
  if (value < min || value >= end) {
    return Bad(name, *text,
               absl::StrCat("is not between ", min, " and ", end - 1));
  }
  return value;
}

// A part of Slurm's lists: "4(x2)" means two nodes of four tasks.
struct TaskCount {
  int tasks = 0;
  int nodes = 1;
};

std::optional<TaskCount> ParseTaskCount(absl::string_view text) {
  TaskCount count;
  const size_t open = text.find("(x");
  if (open != absl::string_view::npos) {
    absl::string_view repeat = text.substr(open + 2);
    if (!absl::ConsumeSuffix(&repeat, ")") ||
        !absl::SimpleAtoi(repeat, &count.nodes) || count.nodes < 1 ||
        count.nodes >= kMaxWorldSize) {
      return std::nullopt;
    }
  }
  if (!absl::SimpleAtoi(text.substr(0, open), &count.tasks) ||
      count.tasks < 1 || count.tasks >= kMaxWorldSize) {
    return std::nullopt;
  }
  return count;
}

// Returns the entry of node `node` in a list such as "4(x2),3": two nodes of
// four tasks and one of three.
absl::StatusOr<int> TasksInList(absl::string_view name, absl::string_view list,
                                int world_size, int node) {
  int64_t tasks = 0;
  int64_t nodes = 0;
  int here = 0;
  for (absl::string_view item : absl::StrSplit(list, ',')) {
    const std::optional<TaskCount> count = ParseTaskCount(item);
    if (!count.has_value()) {
      return Bad(name, list, "is not a list of task counts");
    }
    if (nodes <= node && node < nodes + count->nodes) here = count->tasks;
    nodes += count->nodes;
    tasks += int64_t{count->tasks} * count->nodes;
  }
  if (tasks != world_size) {
    return Bad(
        name, list,
        absl::StrCat("adds up to ", tasks, " tasks, not to ", world_size));
  }
  if (here == 0) {
    return Bad(name, list,
               absl::StrCat("has no entry for SLURM_NODEID=", node));
  }
  return here;
}

// Returns the number of tasks on this node. Slurm has no single variable for
// it.
absl::StatusOr<int> SlurmTasks(EnvironmentLookup lookup, int world_size) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<int> node_id,
                            ReadNumber(lookup, "SLURM_NODEID", 0, world_size));
  const int node = node_id.value_or(0);
  for (absl::string_view name :
       {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const std::optional<std::string> list = lookup(name);
    if (list.has_value()) return TasksInList(name, *list, world_size, node);
  }
  constexpr absl::string_view kPerNode = "SLURM_NTASKS_PER_NODE";
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<int> per_node,
                            ReadNumber(lookup, kPerNode, 1, kMaxWorldSize));
  const int64_t before = int64_t{per_node.value_or(0)} * node;
  if (per_node.has_value() && before < world_size) {
    return static_cast<int>(std::min<int64_t>(*per_node, world_size - before));
  }
  if (node > 0) {
    return Bad("SLURM_NODEID", absl::StrCat(node),
               "says that ranks are on several hosts, but no variable says how "
               "many on each");
  }
  return world_size;
}

// Reads the local rank and the local world size; rank and world size are known.
absl::Status ReadLocal(EnvironmentLookup lookup, const VariableNames& names,
                       RankEnvironment& result) {
  if (names.local_world_size.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(result.local_world_size,
                              SlurmTasks(lookup, result.world_size));
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::optional<int> size,
        ReadNumber(lookup, names.local_world_size, 1, result.world_size + 1));
    result.local_world_size = size.value_or(result.world_size);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::optional<int> local_rank,
      ReadNumber(lookup, names.local_rank, 0, result.local_world_size));
  result.local_rank =
      local_rank.value_or(result.rank % result.local_world_size);
  // If no variable gives the local world size, all ranks are assumed to be on
  // this host. A local rank that differs from the rank disproves the
  // assumption. If a variable gives the local world size, local ranks may have
  // any order, as with Open MPI 6.
  const bool is_said = !names.local_world_size.empty() &&
                       lookup(names.local_world_size).has_value();
  if (!is_said && result.local_world_size == result.world_size &&
      result.local_rank != result.rank) {
    const absl::string_view hosts = names.local_world_size.empty()
                                        ? "SLURM_STEP_TASKS_PER_NODE"
                                        : names.local_world_size;
    return Bad(names.local_rank, absl::StrCat(result.local_rank),
               absl::StrCat("contradicts ", names.rank, "=", result.rank,
                            ": by ", hosts, ", set or not, all ",
                            result.world_size, " ranks are on this host"));
  }
  return absl::OkStatus();
}

// Returns nullopt if neither the rank nor the size is set.
absl::StatusOr<std::optional<RankEnvironment>> ReadVariables(
    EnvironmentLookup lookup, const VariableNames& names) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::optional<int> size,
      ReadNumber(lookup, names.world_size, 1, kMaxWorldSize));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::optional<int> rank,
      ReadNumber(lookup, names.rank, 0, size.value_or(kMaxWorldSize)));
  if (!rank.has_value() && !size.has_value()) return std::nullopt;
  if (!rank.has_value() || !size.has_value()) {
    const absl::string_view set = rank ? names.rank : names.world_size;
    const absl::string_view missing = rank ? names.world_size : names.rank;
    return Bad(set, *lookup(set),
               absl::StrCat("is set but ", missing, " is not"));
  }
  RankEnvironment result;
  result.rank = *rank;
  result.world_size = *size;
  LOCKSTEP_RETURN_IF_ERROR(ReadLocal(lookup, names, result));
  return result;
}

VariableNames SlurmNames(EnvironmentLookup lookup) {
  return {
      "SLURM_PROCID",
      lookup("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS",
      "SLURM_LOCALID", ""};
}

// Returns whether srun started this process. The steps of Slurm's batch and
// interactive shells have numbers from the upper end of 32 bits.
bool IsSlurmTask(EnvironmentLookup lookup) {
  constexpr uint32_t kFirstReserved = 0xfffffff0;
  const std::optional<std::string> step = lookup("SLURM_STEP_ID");
  uint32_t number = 0;
  return lookup("SLURM_PROCID").has_value() && step.has_value() &&
         !(absl::SimpleAtoi(*step, &number) && number >= kFirstReserved);
}

// Returns whether srun has set the PMI_ variables, as it does for MPI programs.
bool IsPmiOfSlurm(EnvironmentLookup lookup) {
  const VariableNames slurm = SlurmNames(lookup);
  return !lookup(kMpich.local_rank).has_value() && IsSlurmTask(lookup) &&
         lookup(kMpich.rank) == lookup(slurm.rank) &&
         lookup(kMpich.world_size) == lookup(slurm.world_size);
}

RankLauncher DetectLauncher(EnvironmentLookup lookup) {
  if (lookup("LOCKSTEP_RENDEZVOUS")) return RankLauncher::kLockstep;
  if (lookup("TORCHELASTIC_RUN_ID")) return RankLauncher::kTorchrun;
  return RankLauncher::kVariables;
}

}  // namespace

std::optional<std::string> LookUpProcessEnvironment(absl::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

absl::StatusOr<std::optional<RankEnvironment>> ReadRankEnvironment(
    EnvironmentLookup lookup) {
  struct Family {
    RankLauncher launcher;
    VariableNames names;
    bool present;
  };
  const Family families[] = {
      {DetectLauncher(lookup), kTorchrun, true},
      {RankLauncher::kOpenMpi, kOpenMpi, true},
      {RankLauncher::kMpich, kMpich, !IsPmiOfSlurm(lookup)},
      {RankLauncher::kSlurm, SlurmNames(lookup), IsSlurmTask(lookup)},
  };
  for (const Family& family : families) {
    if (!family.present) continue;
    LOCKSTEP_ASSIGN_OR_RETURN(std::optional<RankEnvironment> result,
                              ReadVariables(lookup, family.names));
    if (!result.has_value()) continue;
    result->rendezvous = lookup("LOCKSTEP_RENDEZVOUS").value_or("");
    result->launcher = family.launcher;
    return result;
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<RankEnvironment>> ReadRankEnvironment() {
  return ReadRankEnvironment(LookUpProcessEnvironment);
}

absl::StatusOr<RankEnvironment> RequireRankEnvironment() {
  LOCKSTEP_ASSIGN_OR_RETURN(std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (environment.has_value()) return *std::move(environment);
  return absl::FailedPreconditionError(
      "no launcher started this process: start it with //collectives:launch, "
      "torchrun, mpirun or srun");
}

absl::Status CheckNotLaunched() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (!environment.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "it starts its ranks itself: run it without a launcher, and without RANK "
      "and WORLD_SIZE in the environment");
}

}  // namespace lockstep
