// Join, serve.
#include "benchmarks/all_reduce_rank.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "benchmarks/all_reduce_turn.h"
#include "benchmarks/all_reduce_worker.h"
#include "benchmarks/communicator_subject.h"
#include "benchmarks/copy_bandwidth.h"
#include "collectives/communicator.h"
#include "collectives/data_type.h"
#include "collectives/group_options.h"
#include "collectives/host/run_on_threads.h"
#include "collectives/launch/join_launched_group.h"
#include "collectives/launch/rank_environment.h"
#include "collectives/usable_cores.h"

namespace lockstep {
namespace {

absl::Status ServeCommunicator(const std::string& listener,
                               Communicator& communicator) {
  CommunicatorSubject subject(communicator);
  return ServeTurns(listener, subject);
}

absl::Status RunProcess(const std::string& listener,
                        const GroupOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (!environment.has_value()) {
    return absl::FailedPreconditionError("a rank needs a launcher");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                            JoinLaunchedGroup(*environment, options));
  return ServeCommunicator(listener, *communicator);
}

// Copies as many bytes as the buffers of `world_size` ranks have.
absl::Status RunCopier(const std::string& listener, int world_size) {
  const int threads = std::min(world_size, UsableCores());
  return ServeTurns(listener, {0, 1}, [&](const TurnRequest& request) {
    const int64_t bytes = request.count * SizeOf(request.type) * world_size *
                          (request.in_place ? 1 : 2);
    return TimeCopies(threads, bytes, request.warmup, request.iterations);
  });
}

}  // namespace

absl::Status RunAllReduceRank(const std::string& listener, const Team& team,
                              int world_size) {
  GroupOptions options;
  options.algorithm = team.algorithm;
  switch (team.kind) {
    case TeamKind::kProcesses:
      return RunProcess(listener, options);
    case TeamKind::kThreads:
      return RunOnThreads(world_size, options, [&](Communicator& communicator) {
        return ServeCommunicator(listener, communicator);
      });
    case TeamKind::kCopy:
      return RunCopier(listener, world_size);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat(Name(team.kind), " ranks run in another program"));
  }
}

}  // namespace lockstep
