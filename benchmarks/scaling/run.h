// One run of one configuration: what a rank does, and all of them together.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_RUN_H_
#define LOCKSTEP_BENCHMARKS_SCALING_RUN_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/scaling/plan.h"
#include "benchmarks/scaling/round.h"
#include "collectives/communicator.h"
#include "models/data/dataset.h"

namespace lockstep::benchmarks {

// Trains for the warm-up and the timed steps, on one compute thread, and checks
// the outcome with the other ranks. A step's time runs from the end of one step
// to the end of the next, so whatever the trainer does in between counts, with
// one exception: the smaller batch that ends an epoch is trained on and left
// out. Errors: kInvalidArgument if the data set has less than one global batch;
// the trainer's; the communicator's.
absl::StatusOr<RankResult> RunRank(Communicator& communicator,
                                   const Dataset& train, const RunSpec& spec);

// Starts this program again as the ranks of one run (a process for each, or one
// with a thread for each), has them run `spec`, and combines what they answer.
// The processes are started with --worker, --backend, --world_sizes and
// --data_dir and have to end in ServeRun. The caller must have one thread only.
// Errors: RankTeam's, which name the rank; CombineRanks's.
absl::StatusOr<RoundSample> RunOnce(const RunSpec& spec);

// Is a rank, or all of them if they are threads, for the driver that listens at
// `listener`: loads the data, joins the group, runs what it is asked for.
// Errors: of the data, the group, the training, the connection.
absl::Status ServeRun(const std::string& listener, RankKind ranks,
                      int world_size, const std::string& data_dir);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_RUN_H_
