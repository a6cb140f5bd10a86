// The measurement of one step: its subjects, their processes and their turns.
#ifndef LOCKSTEP_BENCHMARKS_STEP_CASE_RUN_H_
#define LOCKSTEP_BENCHMARKS_STEP_CASE_RUN_H_

#include "absl/status/status.h"
#include "benchmarks/step/results.h"
#include "benchmarks/step/settings.h"

namespace lockstep::benchmarks {

// Measures the step with all subjects that report.settings name, and adds the
// result to the report. The calling program must be the one that serves
// --worker. If a peer fails, report.missing gets the reason. Errors: kDataLoss
// if a subject computes something else than the first of ours, or on a GPU than
// ours on the CPU; any error of ours.
absl::Status RunCase(const StepCase& one, StepReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_STEP_CASE_RUN_H_
