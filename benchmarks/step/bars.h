// The bars of the command `step`: the cases that have a bar, the formulas of
// the values that are compared with the bars, and the text that explains the
// bars.
#ifndef LOCKSTEP_BENCHMARKS_STEP_BARS_H_
#define LOCKSTEP_BENCHMARKS_STEP_BARS_H_

#include <optional>
#include <string>
#include <vector>

#include "base/vector_unit.h"
#include "benchmarks/step/results.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// All batch norms of one step, each with the addition and the ReLU that are
// part of it.
struct BatchNormTimes {
  double forward_seconds = 0, backward_seconds = 0;
  // The time in which a copy moves the bytes that must move (WorkOf), over the
  // time taken: bytes / StepResult::copy / seconds.
  double forward_share = 0, backward_share = 0;
  double share = 0;  // The share of both directions together.
  // The share with a copy through the step's memory, StepResult::far_copy. 0:
  // not measured.
  double far_share = 0;
};

// Returns no value if layers were not measured (--layers), or if the network
// has no batch norm.
std::optional<BatchNormTimes> BatchNormTimesOf(const StepResult& result);

// Returns the project's bars, for one thread in float32: the step of each
// network against the fastest of the newest PyTorch, batch norm against a copy,
// and memory against PyTorch's least. A bar that was not measured has no value.
// Returns none for a run on a GPU, which the bars are not for.
std::vector<report::Bar> BarsOf(const StepReport& report);

// Explains the bars, for --help and below the tables.
report::Term BarsTerm();

// Returns a sentence on the bar of a ResNet's step for a processor with these
// vector instructions.
std::string VectorUnitRemark(VectorUnit unit);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_STEP_BARS_H_
