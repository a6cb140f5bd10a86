#include "collectives/launch/create_group.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cores.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/host_group.h"
#include "collectives/launch/launched_group.h"
#include "collectives/launch/rank_environment.h"

namespace lockstep {
namespace {

std::map<std::string, BackendFactory, std::less<>>& RegisteredBackends() {
  static auto& backends =
      *new std::map<std::string, BackendFactory, std::less<>>;
  return backends;
}

absl::StatusOr<LocalRanks> JoinProcesses(const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (!environment) {
    return absl::FailedPreconditionError(
        "backend processes: no launcher started this process; start it with "
        "//collectives:launch, torchrun, mpirun or srun");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> rank,
                            JoinLaunchedGroup(*environment, options));
  LocalRanks ranks;
  ranks.push_back(std::move(rank));
  return ranks;
}

absl::Status NotLinked(absl::string_view backend) {
  if (backend != "mpi" && backend != "nccl") {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown backend '", backend,
                     "': must be threads, processes, mpi or nccl"));
  }
  return absl::UnimplementedError(absl::StrCat(
      "backend ", backend, ": this program was not linked with //collectives/",
      backend, ":", backend, "_group"));
}

}  // namespace

bool RegisterBackend(absl::string_view name, BackendFactory factory) {
  RegisteredBackends().insert_or_assign(std::string(name), std::move(factory));
  return true;
}

absl::StatusOr<LocalRanks> CreateGroup(absl::string_view backend,
                                       int world_size,
                                       const GroupOptions& options) {
  if (world_size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size ", world_size, " is negative"));
  }
  if (backend == "threads") {
    return CreateThreadGroup(world_size == 0 ? UsableCores() : world_size,
                             options);
  }
  const auto registered = RegisteredBackends().find(backend);
  if (backend != "processes" && registered == RegisteredBackends().end()) {
    return NotLinked(backend);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      LocalRanks ranks, backend == "processes" ? JoinProcesses(options)
                                               : registered->second(options));
  if (world_size != 0 && ranks.front()->world_size() != world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the group should have ", world_size, " ranks, but ",
                     ranks.front()->world_size(), " were started"));
  }
  return ranks;
}

}  // namespace lockstep
