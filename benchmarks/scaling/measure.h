// The order in which configurations are run, and the report they make.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_MEASURE_H_
#define LOCKSTEP_BENCHMARKS_SCALING_MEASURE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/scaling/plan.h"
#include "benchmarks/scaling/report.h"
#include "benchmarks/scaling/round.h"

namespace lockstep::benchmarks {

// Runs one configuration once.
using ScalingRunner =
    std::function<absl::StatusOr<RoundSample>(const RunSpec& spec)>;

// Takes text to show to whoever waits, line ends included.
using ScalingProgress = std::function<void(absl::string_view text)>;

struct MeasureOptions {
  double seconds = 40;  // To aim at, if settings.steps is 0.
  int cores = 1;        // That the ranks may use.
};

// Runs every configuration once in each round (harness/rounds.h). Before that,
// if settings.steps is 0, a short round that does not count finds out how many
// steps fit. The report's origin is left to the caller. settings: valid.
// Errors: the runner's first.
absl::StatusOr<ScalingReport> MeasureScaling(const ScalingSettings& settings,
                                             const MeasureOptions& options,
                                             const ScalingRunner& run,
                                             const ScalingProgress& progress);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_MEASURE_H_
