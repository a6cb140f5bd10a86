// Plays one run of a case, in one start or in two.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_PLAY_RUN_H_
#define LOCKSTEP_CONFORMANCE_CHECK_PLAY_RUN_H_

#include <string>

#include "absl/status/statusor.h"
#include "conformance/check/check_case.h"
#include "conformance/check/run_trainer.h"
#include "conformance/check/trainer_run.h"
#include "conformance/protocol/case.h"

namespace lockstep {

// Writes the plan's case below `work_folder`, which is created and must not
// have been used before, and runs the trainer on it at the plan's world size.
// If there is a second start, it finds the folder `checkpoint` that the first
// wrote, and the runs are joined (join_runs.h); there is none if the first
// failed, wrote no checkpoint, which is a failure too, or does not support the
// case.
//
// Below work_folder are then `case` and `output`, and `resumed_case` and
// `resumed_output`; the caller's to remove.
//
// Errors: RunTrainer's; the file system's.
absl::StatusOr<TrainerRun> PlayRun(const TrainerCommand& trainer,
                                   const CasePlan& plan, const CaseFiles& files,
                                   const std::string& work_folder);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_PLAY_RUN_H_
