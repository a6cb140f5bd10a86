#include "collectives/groups/rendezvous_location.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/fnv1a.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/groups/rank_environment.h"

namespace lockstep {
namespace {

// How to tell one launcher's runs from each other.
struct RunMarks {
  absl::string_view name;  // Part of the folder's name.
  std::vector<absl::string_view> variables;
  // Whether all variables must be set; otherwise an unset one counts as "".
  bool all_needed = false;
  // For FindLauncherProcess: set if one process starts all ranks of a host.
  std::vector<absl::string_view> rank_variables = {};
};

RunMarks MarksOf(RankLauncher launcher) {
  switch (launcher) {
    case RankLauncher::kTorchrun:
      return {.name = "torchrun",
              .variables = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                            "MASTER_ADDR", "MASTER_PORT"},
              .rank_variables = {"RANK", "TORCHELASTIC_RUN_ID", "MASTER_PORT"}};
    case RankLauncher::kOpenMpi:
      return {.name = "mpirun",
              .variables = {"PMIX_NAMESPACE"},
              .rank_variables = {"OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"}};
    case RankLauncher::kMpich:
      return {.name = "mpirun",
              .variables = {"PMI_SIZE"},
              .rank_variables = {"PMI_RANK", "PMI_SIZE"}};
    case RankLauncher::kSlurm:
      return {.name = "srun",
              .variables = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
              .all_needed = true};
    case RankLauncher::kLockstep:
    case RankLauncher::kVariables:
      break;
  }
  return {.name = "run",
          .variables = {"MASTER_ADDR", "MASTER_PORT"},
          .all_needed = true};
}

absl::StatusOr<std::string> ChooseRunFolder(const RankEnvironment& environment,
                                            EnvironmentLookup lookup,
                                            const ProcessIdentity& launcher) {
  const RunMarks marks = MarksOf(environment.launcher);
  std::string run;
  for (const absl::string_view name : marks.variables) {
    const std::optional<std::string> value = lookup(name);
    if (marks.all_needed && !value.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, " is not set, which would tell this run from others: set ",
          "LOCKSTEP_RENDEZVOUS to the path of a file, the same for all ranks"));
    }
    absl::StrAppend(&run, name, "=", value.value_or(""), "\n");
  }
  if (!marks.rank_variables.empty()) {
    absl::StrAppend(&run, launcher.pid, " ", launcher.start_ticks);
  }
  const std::string temporary = lookup("TMPDIR").value_or("");
  return absl::StrCat(temporary.empty() ? "/tmp" : temporary, "/lockstep-",
                      geteuid(), "-", marks.name, "-",
                      absl::Hex(Fnv1a(run), absl::kZeroPad16));
}

absl::StatusOr<int> ReadPort(EnvironmentLookup lookup, absl::string_view name) {
  const std::string text = lookup(name).value_or("");
  int port = 0;
  if (!absl::SimpleAtoi(text, &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "environment variable ", name, "=\"", text, "\" is not a port"));
  }
  return port;
}

absl::StatusOr<RendezvousLocation> ChooseRunPort(
    const RankEnvironment& environment, EnvironmentLookup lookup) {
  constexpr absl::string_view kOwnPort = "LOCKSTEP_MASTER_PORT";
  constexpr absl::string_view kPort = "MASTER_PORT";
  const bool one_host = environment.is_on_one_host();
  const bool own = lookup(kOwnPort).has_value();
  if ((!one_host && !lookup("MASTER_ADDR").has_value()) ||
      (!own && !lookup(kPort).has_value())) {
    return absl::InvalidArgumentError(
        absl::StrCat("of ", environment.world_size, " ranks only ",
                     environment.local_world_size,
                     " are on this host: set MASTER_ADDR to the host of rank 0 "
                     "and MASTER_PORT "
                     "to a free port there, for all ranks"));
  }
  RendezvousLocation place;
  place.address = lookup("MASTER_ADDR").value_or("127.0.0.1");
  LOCKSTEP_ASSIGN_OR_RETURN(place.port,
                            ReadPort(lookup, own ? kOwnPort : kPort));
  if (!own && environment.launcher == RankLauncher::kTorchrun) ++place.port;
  place.listen_address = lookup("LOCKSTEP_LISTEN_ADDRESS").value_or("");
  place.token = lookup("LOCKSTEP_TOKEN").value_or("");
  return place;
}

ProcessIdentity LauncherOf(const RankEnvironment& environment) {
  const RunMarks marks = MarksOf(environment.launcher);
  if (marks.rank_variables.empty()) return {};
  return FindLauncherProcess(marks.rank_variables);
}

}  // namespace

ProcessIdentity FindLauncherProcess(
    std::span<const absl::string_view> variables) {
  std::vector<std::string> mine;
  for (const absl::string_view name : variables) {
    const std::optional<std::string> value = LookUpProcessEnvironment(name);
    if (value.has_value()) mine.push_back(absl::StrCat(name, "=", *value));
  }
  pid_t pid = getppid();
  while (true) {
    const std::optional<ProcessStat> stat = ReadProcessStat(pid);
    if (!stat.has_value()) return {.pid = pid};
    const bool is_of_this_rank =
        !mine.empty() &&
        std::all_of(mine.begin(), mine.end(), [pid](const std::string& entry) {
          return HasVariable(pid, entry);
        });
    if (!is_of_this_rank || stat->parent == 0) {
      return {.pid = pid, .start_ticks = stat->start_ticks};
    }
    pid = stat->parent;
  }
}

absl::StatusOr<RendezvousLocation> ChooseRendezvousLocation(
    const RankEnvironment& environment, EnvironmentLookup lookup,
    const ProcessIdentity& launcher) {
  if (!environment.rendezvous.empty() && environment.is_on_one_host()) {
    return RendezvousLocation{.file = environment.rendezvous};
  }
  if (lookup("LOCKSTEP_MASTER_PORT").has_value() ||
      !environment.is_on_one_host()) {
    return ChooseRunPort(environment, lookup);
  }
  RendezvousLocation place;
  LOCKSTEP_ASSIGN_OR_RETURN(place.folder,
                            ChooseRunFolder(environment, lookup, launcher));
  return place;
}

absl::StatusOr<RendezvousLocation> ChooseRendezvousLocation(
    const RankEnvironment& environment) {
  return ChooseRendezvousLocation(environment, LookUpProcessEnvironment,
                                  LauncherOf(environment));
}

}  // namespace lockstep
