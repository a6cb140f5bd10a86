// The bars of training on GPUs, judged by the numbers that stages wrote.
#ifndef LOCKSTEP_TOOLS_GPU_BUNDLE_TRAINING_BARS_H_
#define LOCKSTEP_TOOLS_GPU_BUNDLE_TRAINING_BARS_H_

#include <span>
#include <vector>

#include "report/document.h"
#include "tools/gpu_bundle/stages.h"

namespace lockstep::gpu_bundle {

// Returns a bar for each goal. Its value comes from the stages that passed:
//
// - A step's: the time of PyTorch's fastest mode over ours, from a report of
//   `step` (benchmarks/step/README.md). The report must have all three modes of
//   PyTorch (eager, compile, graph), since fewer modes make the goal easier.
// - Exposed communication's: its percentage of a ResNet-50 step with the most
//   ranks, from a report of `scaling`. There must be at least two ranks, each
//   with a GPU of its own.
//
// A bar without such numbers has no value: it was not measured.
std::vector<report::Bar> TrainingBars(std::span<const StageResult> results);

}  // namespace lockstep::gpu_bundle

#endif  // LOCKSTEP_TOOLS_GPU_BUNDLE_TRAINING_BARS_H_
