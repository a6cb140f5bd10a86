// Launch and collect; join and report.
#include "benchmarks/scaling_run.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "benchmarks/scaling_rank.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/run_on_threads.h"
#include "collectives/launch/join_launched_group.h"
#include "collectives/launch/launch_summary.h"
#include "collectives/launch/launcher.h"
#include "collectives/launch/rank_environment.h"
#include "models/data/fashion_mnist.h"
#include "models/file_io.h"
#include "models/temporary_folder.h"

namespace lockstep {
namespace {

std::string ResultPath(const std::string& folder, int rank) {
  return absl::StrCat(folder, "/rank_", rank);
}

absl::StatusOr<std::vector<RankResult>> ReadResults(const std::string& folder,
                                                    int world_size) {
  std::vector<RankResult> results;
  for (int rank = 0; rank < world_size; ++rank) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string text,
                              ReadFile(ResultPath(folder, rank)));
    LOCKSTEP_ASSIGN_OR_RETURN(RankResult result, ParseRankResult(text));
    results.push_back(std::move(result));
  }
  return results;
}

absl::Status RunAndWrite(Communicator& communicator, const Dataset& train,
                         const RunSpec& spec, const std::string& folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RankResult result,
                            RunRank(communicator, train, spec));
  return ReplaceFile(ResultPath(folder, communicator.rank()),
                     SerializeRankResult(result));
}

absl::Status RunProcess(const Dataset& train, const RunSpec& spec,
                        const std::string& folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                            ReadRankEnvironment());
  if (!environment.has_value()) {
    return absl::FailedPreconditionError("a worker needs a launcher");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                            JoinLaunchedGroup(*environment, GroupOptions()));
  return RunAndWrite(*communicator, train, spec, folder);
}

absl::Status RunThreads(const Dataset& train, const RunSpec& spec,
                        const std::string& folder) {
  return RunOnThreads(spec.configuration.world_size, GroupOptions(),
                      [&](Communicator& communicator) {
                        return RunAndWrite(communicator, train, spec, folder);
                      });
}

}  // namespace

absl::StatusOr<RoundSample> RunOnce(
    const RunSpec& spec,
    const std::function<std::vector<std::string>(const std::string& folder)>&
        worker) {
  LOCKSTEP_ASSIGN_OR_RETURN(const TemporaryFolder folder,
                            TemporaryFolder::Create("lockstep-scaling"));
  const int world_size = spec.configuration.world_size;
  LaunchOptions options;
  options.nproc = spec.ranks == RankKind::kProcesses ? world_size : 1;
  options.argv = worker(folder.path());
  options.environment = {{"OMP_NUM_THREADS", "1"}};
  LOCKSTEP_ASSIGN_OR_RETURN(const LaunchSummary summary, Launch(options));
  if (summary.received_signal != 0) {
    return absl::CancelledError(absl::StrCat(
        "ended by signal ", FormatSignal(summary.received_signal)));
  }
  if (ExitStatus(summary) != 0) {
    return absl::AbortedError(DescribeFailure(summary));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<RankResult> results,
                            ReadResults(folder.path(), world_size));
  return CombineRanks(spec, results);
}

absl::Status RunWorker(const RunSpec& spec, const std::string& folder) {
  LOCKSTEP_ASSIGN_OR_RETURN(const FashionMnist data,
                            LoadFashionMnist(spec.data_dir));
  return spec.ranks == RankKind::kProcesses
             ? RunProcess(data.train, spec, folder)
             : RunThreads(data.train, spec, folder);
}

}  // namespace lockstep
