// Starts a judged trainer on a case and gathers what its ranks wrote.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_RUN_TRAINER_H_
#define LOCKSTEP_CONFORMANCE_CHECK_RUN_TRAINER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "conformance/check/trainer_run.h"

namespace lockstep {

struct TrainerCommand {
  // For /bin/sh. With "{world_size}" in it, it is started once, with the number
  // in that place; else as every rank (PROTOCOL.md).
  std::string command = {};
  std::string working_folder = {};  // To start it in; "": this process's own.
  absl::Duration timeout = absl::Minutes(10);  // For each start.
};

// Runs the command, with LOCKSTEP_CASE and LOCKSTEP_OUTPUT set to the folders,
// and reads rank<r>.json and .safetensors of each rank, however it ended. What
// it prints is not shown; no process that it started is left. The run's ranks
// have what ReadRankOutput says; one may still speak of another world size.
//
// output_folder: created if missing; may have a folder `checkpoint`, and
//   nothing else.
// Only for single-threaded processes (collectives/launch/launcher.h).
//
// That the trainer fails, hangs or writes nonsense is no error. Errors:
// kInvalidArgument if the command is empty, or the world size or the timeout
// out of range; kNotFound if the case or the working folder is not there;
// kFailedPrecondition if the output folder has something in it; kCancelled if
// this process was sent a signal that asks to end; the system's.
absl::StatusOr<TrainerRun> RunTrainer(const TrainerCommand& trainer,
                                      const std::string& case_folder,
                                      const std::string& output_folder,
                                      int world_size);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_RUN_TRAINER_H_
