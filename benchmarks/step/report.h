// The numbers of the command `step`: what was measured, the formulas behind
// what is derived from it, and the report's forms.
#ifndef LOCKSTEP_BENCHMARKS_STEP_REPORT_H_
#define LOCKSTEP_BENCHMARKS_STEP_REPORT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/vector_unit.h"
#include "benchmarks/step/roofline.h"
#include "benchmarks/step/step.h"
#include "models/networks/network.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// A median over rounds, and its range.
struct Spread {
  double median = 0, min = 0, max = 0;
};
// At least one sample.
Spread SpreadOf(std::span<const double> samples);

// Who trains, and its numbers.
struct StepRow {
  std::string subject;               // "ours", "PyTorch 2.15.0 compile nhwc".
  bool newest = false;               // Whether it is of --python.
  std::vector<double> seconds = {};  // Of a step: the median of each turn.
  std::optional<int64_t> memory_bytes = {};
  std::optional<double> gradient_error = {};  // CompareFirstSteps.
  // By DeriveStep.
  Spread step = {};
  double images_per_second = 0;           // batch / median.
  std::optional<double> peak_share = {};  // flops / (seconds * peak), median.
  std::optional<Spread> ratio = {};  // Its seconds over ours, round by round.
};

// Operations of one kind and size that are computed alike, together.
struct LayerRow {
  std::string what;         // "conv 3x3, 64, 28x28".
  std::string chosen = {};  // The algorithm (CpuReplica::Algorithms).
  int count = 0;
  double forward_seconds = 0, backward_seconds = 0;
  // The least that is computed and moved: OperationWork.
  int64_t flops = 0, forward_bytes = 0, backward_bytes = 0;
  // The time that these operations take at the machine's peak, or these bytes
  // at a copy's bandwidth: the longer of the two, for each pass by itself.
  double bound_seconds = 0;
  bool memory_bound = false;  // Most of it is bytes.
  bool batch_norm = false;    // With its addition and ReLU, if there are any.
};

struct StepResult {
  StepCase one;
  int64_t flops = 0;  // StepFlops.
  StepTolerance tolerance = {};
  std::vector<double> peaks = {};  // Operations a second, by round.
  // With --layers, the most that was measured: operations and bytes a second;
  // far_copy is that of a copy through as much memory as our step takes.
  std::optional<double> layer_peak = {}, copy = {}, far_copy = {};
  // Ours first, once for each of `one`'s convolutions.
  std::vector<StepRow> rows = {};
  std::string layout = {};            // The first row's, of activations.
  std::vector<LayerRow> layers = {};  // The first row's, longest time first.
};

struct StepReport {
  StepSettings settings = {};
  report::Origin origin = {};
  std::string newest = {};  // "PyTorch 2.15.0 (python3)"; empty for none.
  // The processor's, which decides the bars of the ResNets.
  VectorUnit vector_unit = VectorUnit::kBaseline;
  std::vector<StepResult> results = {};
  std::vector<std::string> missing = {};  // What, and why.
};

// Fills in what is derived. result: each row has a sample for each of `peaks`,
// unless there are no peaks.
void DeriveStep(StepResult& result);

// The fastest of the newest PyTorch's, by its median; null if there is none.
const StepRow* BestPeer(const StepResult& result);

// chosen, forward_seconds, backward_seconds: by operation. peak and copy as
// above.
std::vector<LayerRow> LayersOf(const Network& network, const StepCase& one,
                               std::span<const std::string> chosen,
                               std::span<const double> forward_seconds,
                               std::span<const double> backward_seconds,
                               double peak, double copy);

// Explains the columns and the bars.
std::vector<report::Term> StepTerms();

// README.md lists the keys of its JSON. finished: whether everything is
// measured; what stands below the tables is left out before.
report::Document StepDocument(const StepReport& report, bool finished = true);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_STEP_REPORT_H_
