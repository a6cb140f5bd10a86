// Starts a judged trainer on a case, in one start or two, and collects the
// outputs of its ranks.
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
  // A command for /bin/sh. If it contains "{world_size}", it is started once,
  // with the number in that place. Otherwise it is started once per rank
  // (PROTOCOL.md).
  std::string command = {};
  std::string working_folder = {};  // To start in; "": this process's own.
  absl::Duration timeout = absl::Minutes(10);  // For each start.
  // If true, RunCasePlan keeps the output of each rank beside each case, and a
  // script that starts the trainer on the case by hand.
  bool keep = false;
};

// Runs the command with LOCKSTEP_CASE and LOCKSTEP_OUTPUT set to the folders.
// Then reads rank<r>.json and rank<r>.safetensors of each rank, however the
// command ended. The command's output is not shown, and no process that it
// started is left. Each rank of the result holds ReadRankOutput's result; its
// world_size may still differ from the run's.
//
// output_folder: created if missing; may contain a folder `checkpoint`, and
// nothing else.
// log_folder: receives a file rank-<r>.log with the output of each rank; "": no
// logs.
// Only for single-threaded processes (collectives/launch/launcher.h).
//
// A trainer that fails, hangs or writes nonsense is no error. Errors:
// kInvalidArgument if the command is empty, or the world size or the timeout is
// out of range; kNotFound if the case or the working folder does not exist;
// kFailedPrecondition if the output folder is not empty; kCancelled if this
// process received a signal that asks it to end; the system's.
absl::StatusOr<TrainerRun> RunTrainer(const TrainerCommand& trainer,
                                      const std::string& case_folder,
                                      const std::string& output_folder,
                                      int world_size,
                                      const std::string& log_folder = "");

// Writes the plan's case below `work_folder` and runs the trainer on it at the
// plan's world size. `work_folder` is created and must not have been used
// before.
//
// If the plan has a second start, that start finds the folder `checkpoint` that
// the first start wrote. The two starts are joined (JoinRuns). The second start
// is omitted if the first failed, wrote no checkpoint (also a failure), or does
// not support the case.
//
// Creates the folders `case` and `output` and, for a second start,
// `resumed_case` and `resumed_output`. If trainer.keep, also creates `logs`,
// with rank-<r>.log, and the script `run.sh`, for each start. The caller
// removes all of them. The script starts the ranks of one host as torchrun
// does, and lets them write to a new folder. The run's by_hand names the script
// of the last start.
//
// Errors: RunTrainer's; the file system's.
absl::StatusOr<TrainerRun> RunCasePlan(const TrainerCommand& trainer,
                                       const CasePlan& plan,
                                       const CaseFiles& files,
                                       const std::string& work_folder);

// Joins the two starts of a run that is stopped and resumed: `first`, which
// ended well, and then `second`, of the same world size. The result for each
// rank:
// - the steps of the first, followed by those of the second;
// - of a tensor that both wrote, the first's, which took that step;
// - the evaluation of the second.
// The end of the run, its last lines and a rank's failure are the second's. A
// failure of the second says that it came after the resume.
TrainerRun JoinRuns(TrainerRun first, TrainerRun second);

// Returns the text as one word of a shell's command line.
std::string ShellQuoted(const std::string& text);

inline constexpr size_t kMostLineBytes = 200;

// Returns the last `most` lines of `output` that are not blank, in order, in
// printable ASCII and without colours. A byte outside ASCII becomes '?'. A line
// that was overwritten by a carriage return counts as one line, and so does an
// unfinished last line. A line of more than kMostLineBytes is cut and ends in
// "...".
std::vector<std::string> LastLines(const std::string& output, size_t most);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_RUN_RUN_TRAINER_H_
