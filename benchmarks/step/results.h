// The numbers of the command `step`: the measurements, and the formulas of the
// derived numbers.
#ifndef LOCKSTEP_BENCHMARKS_STEP_RESULTS_H_
#define LOCKSTEP_BENCHMARKS_STEP_RESULTS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/vector_unit.h"
#include "benchmarks/step/settings.h"
#include "benchmarks/step/turn.h"
#include "models/networks/network.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// A median over rounds, and its range.
struct Spread {
  double median = 0, min = 0, max = 0;
};
// Returns the spread of at least one sample.
Spread SpreadOf(std::span<const double> samples);

// One subject, which is a program that trains, and its numbers.
struct StepRow {
  std::string subject;               // "ours", "PyTorch 2.15.0 compile nhwc".
  bool newest = false;               // Whether it runs in --python.
  std::vector<double> seconds = {};  // The median step of each turn.
  std::optional<int64_t> memory_bytes = {};
  // CompareFirstSteps, with the first row, or on a GPU with ours on the CPU.
  std::optional<double> gradient_error = {};
  // DeriveStep sets the fields below.
  Spread step = {};
  double images_per_second = 0;           // batch / median.
  std::optional<double> peak_share = {};  // flops / (seconds * peak), median.
  std::optional<Spread> ratio = {};       // Its seconds / ours, by round.
};

// The sum over all operations of one kind and size with the same algorithm.
struct LayerRow {
  std::string what;         // "conv 3x3, 64, 28x28".
  std::string chosen = {};  // The algorithm (CpuReplica::Algorithms).
  int count = 0;
  double forward_seconds = 0, backward_seconds = 0;
  // The least numbers of operations and bytes: OperationWork.
  int64_t flops = 0, forward_bytes = 0, backward_bytes = 0;
  // The time of the operations at the machine's peak, or of the bytes at a
  // copy's bandwidth. The longer time counts, for each pass by itself.
  double bound_seconds = 0;
  bool memory_bound = false;  // Bytes take most of bound_seconds.
  bool batch_norm = false;    // With the addition and ReLU that it has.
};

struct StepResult {
  StepCase one;
  int64_t flops = 0;  // StepFlops.
  StepTolerance tolerance = {};
  std::vector<double> peaks = {};  // Operations a second, by round.
  // With --layers, the largest measured operations and bytes a second. far_copy
  // is the bandwidth of a copy through as much memory as our step takes.
  std::optional<double> layer_peak = {}, copy = {}, far_copy = {};
  // Our rows come first: one for each of `one`'s convolutions, then, on a GPU,
  // that of eager steps.
  std::vector<StepRow> rows = {};
  std::string layout = {};  // The first row's layout of activations.
  // The first row's, the longest time first.
  std::vector<LayerRow> layers = {};
};

struct StepReport {
  StepSettings settings = {};
  report::Origin origin = {};
  std::string newest = {};  // --python's: "PyTorch 2.15.0 (python3)"; or empty.
  std::string gpu = {};     // The GPU's name; empty: the CPU.
  // The processor's vector instructions, which decide the bars of the ResNets.
  VectorUnit vector_unit = VectorUnit::kBaseline;
  std::vector<StepResult> results = {};
  std::vector<std::string> missing = {};  // Each with the reason.
};

// Sets the derived fields. result: each row has a sample for each of `peaks`,
// unless there are no peaks.
void DeriveStep(StepResult& result);

// Returns the fastest row of --python's PyTorch, by its median; null if there
// is none.
const StepRow* FastestNewestPeer(const StepResult& result);

// Returns the rows of a network's layers, the longest time first. chosen,
// forward_seconds, backward_seconds: by operation. peak, copy: as StepResult's
// layer_peak and copy.
std::vector<LayerRow> LayersOf(const Network& network, const StepCase& one,
                               std::span<const std::string> chosen,
                               std::span<const double> forward_seconds,
                               std::span<const double> backward_seconds,
                               double peak, double copy);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_STEP_RESULTS_H_
