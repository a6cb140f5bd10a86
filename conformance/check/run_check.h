// Runs a case with a trainer and judges the result.
#ifndef LOCKSTEP_CONFORMANCE_CHECK_RUN_CHECK_H_
#define LOCKSTEP_CONFORMANCE_CHECK_RUN_CHECK_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "conformance/check/cases/check_case.h"
#include "conformance/check/check_report.h"
#include "conformance/check/run/run_trainer.h"

namespace lockstep::conformance {

// Starts the trainer on the case and judges it. The starts: one rank, all
// ranks, one rank again to measure its rounding, and, if a claim fails, one
// rank on part of the data to find the cause.
//
// work_folder: must not exist. Each start gets a folder below it. Unless
// trainer.keep is set, `work_folder` is removed at the end.
// on_start: called before each start with its name ("2 ranks").
//
// If a run fails, writes less than it should or does not support the case, the
// trainer is not started again. Only for single-threaded processes.
//
// A trainer's failure is a verdict, never an error. Errors: RunCasePlan's;
// kUnavailable if `work_folder` cannot be created.
absl::StatusOr<CaseReport> RunCheck(
    const CheckCase& check, const TrainerCommand& trainer,
    const std::string& work_folder,
    const std::function<void(const std::string&)>& on_start);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECK_RUN_CHECK_H_
