// The ways in which a training run gets its ranks.
#ifndef LOCKSTEP_MODELS_TRAIN_START_RANKS_H_
#define LOCKSTEP_MODELS_TRAIN_START_RANKS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/group_options.h"
#include "collectives/launch/launch_summary.h"
#include "collectives/launch/rank_environment.h"
#include "models/data/dataset.h"
#include "models/train/train_run.h"

namespace lockstep {

// Trains with `world_size` threads of this process as ranks. Errors: those of
// RunOnThreads, led by the rank.
absl::Status TrainOnThreads(int world_size, const GroupOptions& group,
                            const FashionMnist& data,
                            const TrainRunOptions& options);

// Joins the launched run of which `environment` says this process is a rank,
// loads the data that `options` names (LoadData), and trains. Errors: those of
// the three, led by the rank.
absl::Status TrainAsLaunchedRank(const RankEnvironment& environment,
                                 const GroupOptions& group,
                                 const TrainRunOptions& options);

// Starts this program again `world_size` times, with `arguments`, as the ranks
// of a run that call TrainAsLaunchedRank, and waits for their end. Errors:
// Launch()'s.
absl::StatusOr<LaunchSummary> StartProcesses(
    int world_size, int threads_per_rank,
    const std::vector<std::string>& arguments);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_TRAIN_START_RANKS_H_
