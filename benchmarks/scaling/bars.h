// The bars of the command `scaling`: the cases that have a bar, and the control
// that measures the limit of the machine.
#ifndef LOCKSTEP_BENCHMARKS_SCALING_BARS_H_
#define LOCKSTEP_BENCHMARKS_SCALING_BARS_H_

#include <string>
#include <vector>

#include "benchmarks/scaling/results.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// Returns the project's bars, for 2 ranks in processes of one thread each, in
// float32: the efficiency of LeNet and ResNet-18 against a goal, and against
// that of PyTorch's DistributedDataParallel. A bar that was not measured has no
// value. Returns none for a run on GPUs, which the bars are not for.
//
// The control is kApart: the same processes without communication. If the run
// measured the control, and the control is below a goal, the goal is 97% of the
// control, and the bar's unit says so.
std::vector<report::Bar> BarsOf(const ScalingReport& report);

// Returns a sentence for each goal that the control has lowered. The sentence
// names the control's efficiency. Returns none for a run on GPUs.
std::vector<std::string> ControlRemarks(const ScalingReport& report);

// Explains the bars, for the lines below the tables.
report::Term BarsTerm();

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SCALING_BARS_H_
