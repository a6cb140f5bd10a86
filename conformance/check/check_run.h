// Runs a case with a trainer and judges it.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_CHECK_RUN_H_
#define LOCKSTEP_CONFORMANCE_CHECK_CHECK_RUN_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/check_report.h"
#include "conformance/check/run/run_trainer.h"

namespace lockstep {

struct CheckRun {
  CaseReport report;
  std::string software;  // As a rank of the runs names it; "" if none did.
};

// Starts the trainer on the case with one rank, with all ranks, and with one
// rank again for its rounding and, where a claim fails, for the cause; each in
// a folder of its own below `work_folder`, which must not exist. `on_start` is
// told what runs next ("2 ranks"). A trainer that fails with one rank, or does
// not write what it should, is not started again. Only for single-threaded
// processes.
//
// What the trainer does is never an error, but a verdict. Errors: PlayRun's.
absl::StatusOr<CheckRun> RunCheck(
    const CheckCase& check, const TrainerCommand& trainer,
    const std::string& work_folder,
    const std::function<void(const std::string&)>& on_start);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECK_CHECK_RUN_H_
