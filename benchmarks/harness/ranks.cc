#include "benchmarks/harness/ranks.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/host_group.h"
#include "collectives/launch/launched_group.h"
#include "collectives/launch/rank_environment.h"

namespace lockstep::benchmarks {

const char* Name(RankKind kind) {
  return kind == RankKind::kProcesses ? "processes" : "threads";
}

std::string OwnProgram() {
  std::error_code error;
  const std::filesystem::path path =
      std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "/proc/self/exe" : path.string();
}

absl::Status RunAsRanks(
    RankKind kind, int world_size, const GroupOptions& options,
    const std::function<absl::Status(Communicator&)>& body) {
  if (kind == RankKind::kThreads) {
    return RunOnThreads(world_size, options, body);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (!environment.has_value()) {
    return absl::FailedPreconditionError("a rank needs a launcher");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                            JoinLaunchedGroup(*environment, options));
  return body(*group);
}

}  // namespace lockstep::benchmarks
