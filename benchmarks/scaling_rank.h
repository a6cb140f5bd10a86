// What a rank does in one run.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_RANK_H_
#define LOCKSTEP_BENCHMARKS_SCALING_RANK_H_

#include "absl/status/statusor.h"
#include "benchmarks/scaling_plan.h"
#include "benchmarks/scaling_round.h"
#include "collectives/communicator.h"
#include "models/data/dataset.h"

namespace lockstep {

// Trains for the warm-up and the timed steps, on one compute thread, and checks
// the outcome with the other ranks. A step's time runs from the end of one step
// to the end of the next, so whatever the trainer does in between counts, with
// one exception: the smaller batch that ends an epoch is trained on and left
// out. Errors: kInvalidArgument if the data set has less than one global batch;
// the trainer's; the communicator's.
absl::StatusOr<RankResult> RunRank(Communicator& communicator,
                                   const Dataset& train, const RunSpec& spec);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_SCALING_RANK_H_
