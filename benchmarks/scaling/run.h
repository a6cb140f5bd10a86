// What a rank does in one run.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_RUN_H_
#define LOCKSTEP_BENCHMARKS_SCALING_RUN_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

// One run: its ranks started, run and collected.

// Runs `spec` in processes of their own (one a rank, or one with a thread for
// each rank) and combines what they report. worker(folder) is the command that
// such a process runs; it has to end in RunWorker(spec, folder). Waits for the
// run's end; the caller must have one thread only. Errors: kCancelled if a
// signal ended the run; kAborted, naming the first rank to fail, if one did;
// CombineRanks's; the launcher's.
absl::StatusOr<RoundSample> RunOnce(
    const RunSpec& spec,
    const std::function<std::vector<std::string>(const std::string& folder)>&
        worker);

// A worker process, from loading the data to writing each of its ranks' results
// into `folder`. Errors: of the data, the group, the training, the file.
absl::Status RunWorker(const RunSpec& spec, const std::string& folder);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_RUN_H_
