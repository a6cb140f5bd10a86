#include "collectives/launch/create_group.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
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

using Backends = std::map<std::string, BackendFactory, std::less<>>;

Backends& RegisteredBackends() {
  static Backends* const backends = new Backends;
  return *backends;
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

absl::StatusOr<std::unique_ptr<Communicator>> JoinGroup(
    absl::string_view backend, const GroupOptions& options) {
  if (backend == "processes") {
    LOCKSTEP_ASSIGN_OR_RETURN(const RankEnvironment environment,
                              RequireRankEnvironment());
    return JoinLaunchedGroup(environment, options);
  }
  const auto registered = RegisteredBackends().find(backend);
  if (registered == RegisteredBackends().end()) return NotLinked(backend);
  return registered->second(options);
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
    return CreateThreadGroup(
        world_size == 0 ? std::min(UsableCores(), kMaxWorldSize) : world_size,
        options);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> rank,
                            JoinGroup(backend, options));
  if (world_size != 0 && rank->world_size() != world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the group should have ", world_size, " ranks, but ",
                     rank->world_size(), " were started"));
  }
  LocalRanks ranks;
  ranks.push_back(std::move(rank));
  return ranks;
}

}  // namespace lockstep
