// Threads, or processes of this program.
#include "models/train/start_ranks.h"

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/group_options.h"
#include "collectives/host/host_group.h"
#include "collectives/launch/launch_summary.h"
#include "collectives/launch/launched_group.h"
#include "collectives/launch/launcher.h"
#include "collectives/launch/rank_environment.h"
#include "models/data/dataset.h"
#include "models/train/train_run.h"

namespace lockstep {
namespace {

absl::Status WithRank(int rank, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("rank ", rank, ": ", status.message()));
}

}  // namespace

absl::Status TrainOnThreads(int world_size, const GroupOptions& group,
                            const FashionMnist& data,
                            const TrainRunOptions& options) {
  return RunOnThreads(world_size, group, [&](Communicator& communicator) {
    return WithRank(communicator.rank(),
                    RunTraining(communicator, data, options));
  });
}

absl::Status TrainAsLaunchedRank(const RankEnvironment& environment,
                                 const GroupOptions& group,
                                 const TrainRunOptions& options) {
  const auto train = [&]() -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                              JoinLaunchedGroup(environment, group));
    // Read now: a rank that fails after it has joined is missed at once.
    LOCKSTEP_ASSIGN_OR_RETURN(const FashionMnist data, LoadData(options));
    return RunTraining(*communicator, data, options);
  };
  return WithRank(environment.rank, train());
}

absl::StatusOr<LaunchSummary> StartProcesses(
    int world_size, int threads_per_rank,
    const std::vector<std::string>& arguments) {
  std::error_code error;
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) {
    return absl::InternalError(
        absl::StrCat("/proc/self/exe: ", error.message()));
  }
  LaunchOptions options;
  options.nproc = world_size;
  options.argv = {program};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.environment = {{"OMP_NUM_THREADS", absl::StrCat(threads_per_rank)}};
  // Only rank 0 prints progress, and errors name their rank.
  options.prefix_output = false;
  return Launch(options);
}

}  // namespace lockstep
