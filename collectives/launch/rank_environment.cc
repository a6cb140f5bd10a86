// The variables of each known launcher, read by one set of rules.
#include "collectives/launch/rank_environment.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace lockstep {
namespace {

struct VariableNames {
  absl::string_view rank;
  absl::string_view world_size;
  absl::string_view local_rank;
  absl::string_view local_world_size;
};

constexpr VariableNames kTorchrun = {"RANK", "WORLD_SIZE", "LOCAL_RANK",
                                     "LOCAL_WORLD_SIZE"};
constexpr VariableNames kOpenMpi = {
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
// Slurm has no variable for the local size; see SlurmLocalWorldSize().
constexpr VariableNames kSlurm = {"SLURM_PROCID", "SLURM_NTASKS",
                                  "SLURM_LOCALID", ""};

absl::Status Bad(absl::string_view name, absl::string_view value,
                 absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable ", name, "=\"", value, "\" ", why));
}

// The number in variable `name`, at least `min` and below `end`; nullopt if the
// variable is not set.
absl::StatusOr<std::optional<int>> ReadNumber(EnvironmentLookup lookup,
                                              absl::string_view name, int min,
                                              int end) {
  if (name.empty()) return std::nullopt;
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

// The number of tasks on this node, from a list such as "4(x2),3": two nodes of
// four tasks and one of three. nullopt if Slurm did not set it.
absl::StatusOr<std::optional<int>> SlurmLocalWorldSize(EnvironmentLookup lookup,
                                                       int world_size) {
  constexpr absl::string_view kList = "SLURM_STEP_TASKS_PER_NODE";
  const std::optional<std::string> list = lookup(kList);
  if (!list.has_value()) return std::nullopt;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<int> node,
                            ReadNumber(lookup, "SLURM_NODEID", 0, world_size));
  int nodes_before = node.value_or(0);
  for (absl::string_view item : absl::StrSplit(*list, ',')) {
    const std::vector<std::string> parts =
        absl::StrSplit(item, absl::ByAnyChar("(x)"), absl::SkipEmpty());
    int tasks = 0;
    int repeat = 1;
    if (parts.empty() || parts.size() > 2 ||
        !absl::SimpleAtoi(parts[0], &tasks) || tasks < 1 ||
        tasks > world_size ||
        (parts.size() == 2 && !absl::SimpleAtoi(parts[1], &repeat))) {
      return Bad(kList, *list, "is not a list of task counts");
    }
    if (nodes_before < repeat) return tasks;
    nodes_before -= repeat;
  }
  return Bad(kList, *list,
             absl::StrCat("has no entry for node ", node.value_or(0)));
}

// nullopt if neither the rank nor the size is set.
absl::StatusOr<std::optional<RankEnvironment>> ReadVariables(
    EnvironmentLookup lookup, const VariableNames& names) {
  constexpr int kMaxWorldSize = 1 << 24;
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
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::optional<int> local_size,
      ReadNumber(lookup, names.local_world_size, 1, *size + 1));
  if (names.local_world_size.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(local_size, SlurmLocalWorldSize(lookup, *size));
  }
  result.local_world_size = local_size.value_or(*size);
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::optional<int> local_rank,
      ReadNumber(lookup, names.local_rank, 0, result.local_world_size));
  result.local_rank = local_rank.value_or(*rank % result.local_world_size);
  return result;
}

}  // namespace

std::optional<std::string> LookUpProcessEnvironment(absl::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

absl::StatusOr<std::optional<RankEnvironment>> ReadRankEnvironment(
    EnvironmentLookup lookup) {
  for (const VariableNames& names : {kTorchrun, kOpenMpi, kSlurm}) {
    const bool slurm = names.local_world_size.empty();
    if (slurm && !lookup(names.rank).has_value()) continue;
    LOCKSTEP_ASSIGN_OR_RETURN(std::optional<RankEnvironment> result,
                              ReadVariables(lookup, names));
    if (!result.has_value()) continue;
    result->rendezvous = lookup("LOCKSTEP_RENDEZVOUS").value_or("");
    return result;
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<RankEnvironment>> ReadRankEnvironment() {
  return ReadRankEnvironment(LookUpProcessEnvironment);
}

}  // namespace lockstep
