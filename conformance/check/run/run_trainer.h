// Starts a judged trainer on a case, in one start or in two, and gathers what
// its ranks wrote.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_RUN_RUN_TRAINER_H_
#define LOCKSTEP_CONFORMANCE_CHECK_RUN_RUN_TRAINER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/protocol/case.h"

namespace lockstep::conformance {

struct TrainerCommand {
  // For /bin/sh. With "{world_size}" in it, it is started once, with the number
  // in that place; else as every rank (PROTOCOL.md).
  std::string command = {};
  std::string working_folder = {};  // To start it in; "": this process's own.
  absl::Duration timeout = absl::Minutes(10);  // For each start.
  // Whether PlayRun writes beside each case what its ranks print, and a script
  // that starts the trainer on the case by hand.
  bool keep = false;
};

// Runs the command, with LOCKSTEP_CASE and LOCKSTEP_OUTPUT set to the folders,
// and reads rank<r>.json and .safetensors of each rank, however it ended. What
// it prints is not shown; no process that it started is left. The run's ranks
// have what ReadRankOutput says; one may still speak of another world size.
//
// output_folder: created if missing; may have a folder `checkpoint`, and
//   nothing else.
// log_folder: for a file rank-<r>.log of what each rank prints; "": none.
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
                                      int world_size,
                                      const std::string& log_folder = "");

// Writes the plan's case below `work_folder`, which is created and must not
// have been used before, and runs the trainer on it at the plan's world size.
// If the plan has a second start, it finds the folder `checkpoint` that the
// first wrote, and the two are joined (JoinRuns). There is no second start if
// the first failed, wrote no checkpoint, which is a failure too, or does not
// support the case.
//
// Below work_folder are then `case` and `output`, and `resumed_case` and
// `resumed_output`; if trainer.keep, also `logs`, with rank-<r>.log, and the
// script `run.sh`, and the same of the second start. All are the caller's to
// remove. The script starts the ranks of one host as torchrun does, and has
// them write to a new folder. by_hand of the run names the script of its last
// start.
//
// Errors: RunTrainer's; the file system's.
absl::StatusOr<TrainerRun> PlayRun(const TrainerCommand& trainer,
                                   const CasePlan& plan, const CaseFiles& files,
                                   const std::string& work_folder);

// Joins the two starts of a run that is stopped and resumed: `first`, which
// ended well, and then `second`, of the same world size. By rank: the steps of
// the second follow those of the first; of a tensor that both wrote, the
// first's is kept, which took that step; the evaluation is the second's. So are
// how the run ended, its last lines and a rank's failure, which says that it
// came after the resume.
TrainerRun JoinRuns(TrainerRun first, TrainerRun second);

// The text as one word of a shell's command line.
std::string ShellQuoted(const std::string& text);

inline constexpr size_t kMostLineBytes = 200;

// The last `most` lines of `output` that are not blank, in order, in printable
// ASCII and without colours; what is no ASCII shows as '?'. A line that was
// overwritten by a carriage return counts as one, and so does an unfinished
// last one. A line of more than kMostLineBytes is cut, and ends in "...".
std::vector<std::string> LastLines(const std::string& output, size_t most);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_RUN_RUN_TRAINER_H_
