// The two starts of a run that is stopped and resumed, as one run.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_JOIN_RUNS_H_
#define LOCKSTEP_CONFORMANCE_CHECK_JOIN_RUNS_H_

#include "conformance/check/trainer_run.h"

namespace lockstep {

// `first`, which ended well, and then `second`, of the same world size. By
// rank: the steps of the second follow those of the first; a tensor that both
// wrote is the first's, which took that step; the evaluation is the second's.
// How it ended, its last lines and its status, which then says that it is of
// the second start, are the second's.
TrainerRun JoinRuns(TrainerRun first, TrainerRun second);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_JOIN_RUNS_H_
