// The report as a document: JSON keys, table columns and texts. All numbers
// come from the report.
#include "benchmarks/step/document.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/vector_unit.h"
#include "benchmarks/step/bars.h"
#include "benchmarks/step/results.h"
#include "benchmarks/step/roofline.h"
#include "benchmarks/step/settings.h"
#include "models/train/device.h"
#include "report/document.h"

namespace lockstep::benchmarks {
namespace {

using report::Cell;
using report::Milliseconds;
using report::Percent;
using report::Significant;
using report::Value;

constexpr double kMebibyte = 1 << 20;

Value SpreadData(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

Value RowData(const StepRow& row) {
  return {{"subject", row.subject},
          {"newest", row.newest},
          {"seconds", row.seconds},
          {"step", SpreadData(row.step)},
          {"images_per_second", row.images_per_second},
          {"peak_share", row.peak_share},
          {"memory_bytes", row.memory_bytes},
          {"gradient_error", row.gradient_error},
          {"ratio", row.ratio ? SpreadData(*row.ratio) : Value()}};
}

Value LayerData(const LayerRow& row) {
  return {{"what", row.what},
          {"chosen", row.chosen},
          {"count", row.count},
          {"forward_seconds", row.forward_seconds},
          {"backward_seconds", row.backward_seconds},
          {"flops", row.flops},
          {"bytes", row.forward_bytes + row.backward_bytes},
          {"bound_seconds", row.bound_seconds},
          {"bound", row.memory_bound ? "memory" : "arithmetic"}};
}

Value BatchNormData(const StepResult& result) {
  const std::optional<BatchNormTimes> times = BatchNormTimesOf(result);
  if (!times) return Value();
  return {{"forward_seconds", times->forward_seconds},
          {"backward_seconds", times->backward_seconds},
          {"forward_share", times->forward_share},
          {"backward_share", times->backward_share},
          {"share", times->share},
          {"far_share", times->far_share}};
}

Value ResultData(const StepResult& result) {
  const StepCase& one = result.one;
  Value rows = Value::Array(), layers = Value::Array();
  for (const StepRow& row : result.rows) rows.Add(RowData(row));
  for (const LayerRow& row : result.layers) layers.Add(LayerData(row));
  return {{"model", one.spec},
          {"batch", one.batch},
          {"channels", one.input.channels},
          {"image_size", one.input.height},
          {"classes", one.input.classes},
          {"device", Name(one.device)},
          {"threads",
           one.device == ComputeDevice::kCuda ? Value() : Value(one.threads)},
          {"type", Name(one.precision)},
          {"flops", result.flops},
          {"peak_flops_per_second", result.peaks},
          {"layer_peak_flops_per_second", result.layer_peak},
          {"copy_bytes_per_second", result.copy},
          {"far_copy_bytes_per_second", result.far_copy},
          {"gradient_tolerance", result.tolerance.gradient},
          {"layout", report::TextOrNull(result.layout)},
          {"subjects", std::move(rows)},
          {"layers", std::move(layers)},
          {"batch_norm", BatchNormData(result)}};
}

Value DataOf(const StepReport& report) {
  Value results = Value::Array();
  for (const StepResult& result : report.results) {
    results.Add(ResultData(result));
  }
  return {{"gpu", report::TextOrNull(report.gpu)},
          {"settings", Value{{"device", Name(report.settings.device)},
                             {"rounds", report.settings.rounds},
                             {"seconds", report.settings.seconds},
                             {"seed", report.settings.seed}}},
          {"peer", report::TextOrNull(report.newest)},
          {"avx512", report.vector_unit == VectorUnit::kAvx512},
          {"not_available", report.missing},
          {"results", std::move(results)}};
}

std::string Ratio(const Spread& spread) {
  return absl::StrFormat("%.2f (%.2f..%.2f)", spread.median, spread.min,
                         spread.max);
}

std::vector<Cell> RowCells(const StepRow& row, bool best) {
  return {row.subject,
          Milliseconds(row.step.median),
          absl::StrCat(Milliseconds(row.step.min), "..",
                       Milliseconds(row.step.max)),
          Significant(row.images_per_second, 3),
          row.peak_share ? Percent(*row.peak_share) : "-",
          row.memory_bytes
              ? Significant(std::max<double>(
                                0, static_cast<double>(*row.memory_bytes)) /
                                kMebibyte,
                            3)
              : "-",
          Cell(row.ratio ? Ratio(*row.ratio) : "-", !best ? report::Tone::kPlain
                                                    : row.ratio->median >= 1.0
                                                        ? report::Tone::kGood
                                                        : report::Tone::kBad)};
}

report::Section SectionOf(const StepResult& result) {
  report::Section section = {
      .title = Name(result.one),
      .table = {.columns = {{.title = "what", .width = 29, .left = true},
                            {.title = "ms", .width = 8},
                            {.title = "range", .width = 14},
                            {.title = "images/s", .width = 8},
                            {.title = "peak", .width = 5},
                            {.title = "MiB", .width = 6},
                            {.title = "over ours", .width = 18}}}};
  const StepRow* const best = FastestNewestPeer(result);
  for (const StepRow& row : result.rows) {
    section.table.rows.push_back(RowCells(row, &row == best));
  }
  if (!result.peaks.empty()) {
    const Spread peak = SpreadOf(result.peaks);
    section.notes.push_back(absl::StrFormat(
        "%s operations a step; %s does %s G/s (%s..%s).",
        absl::StrCat(Significant(static_cast<double>(result.flops) / 1e9, 3),
                     " G"),
        PeakInstructions(result.one.type()), Significant(peak.median / 1e9, 3),
        Significant(peak.min / 1e9, 3), Significant(peak.max / 1e9, 3)));
  }
  return section;
}

// Returns the algorithm in one word, for a column of eight characters. If the
// directions differ, `chosen` separates them by commas.
std::string ChosenWord(const std::string& chosen) {
  if (chosen.empty()) return "-";
  if (absl::StrContains(chosen, ',')) return "mixed";
  return chosen.substr(0, chosen.find(' '));
}

std::vector<Cell> LayerCells(const LayerRow& row, double peak) {
  const double seconds = row.forward_seconds + row.backward_seconds;
  return {
      row.what,
      absl::StrCat(row.count),
      ChosenWord(row.chosen),
      Milliseconds(row.forward_seconds),
      Milliseconds(row.backward_seconds),
      row.flops > 0 && peak > 0
          ? Percent(static_cast<double>(row.flops) / seconds / peak)
          : "-",
      Significant(static_cast<double>(row.forward_bytes + row.backward_bytes) /
                      kMebibyte,
                  3),
      row.memory_bound ? "memory" : "arithmetic",
      Percent(row.bound_seconds / seconds)};
}

report::Section LayerSectionOf(const StepResult& result) {
  const double peak = result.layer_peak.value_or(0);
  report::Section section = {
      .title = absl::StrCat(Name(result.one), ": where ",
                            OursName(result.one.convolutions[0]), " goes"),
      .table = {.columns = {{.title = "layers", .width = 41, .left = true},
                            {.title = "n", .width = 3},
                            {.title = "chosen", .width = 8, .left = true},
                            {.title = "fwd ms", .width = 7},
                            {.title = "bwd ms", .width = 7},
                            {.title = "peak", .width = 4},
                            {.title = "MiB", .width = 6},
                            {.title = "bound by", .width = 10, .left = true},
                            {.title = "bound", .width = 6}}}};
  double seconds = 0, bound = 0;
  for (const LayerRow& row : result.layers) {
    section.table.rows.push_back(LayerCells(row, peak));
    seconds += row.forward_seconds + row.backward_seconds;
    bound += row.bound_seconds;
  }
  section.notes.push_back(absl::StrFormat(
      "All layers: %s ms; their bounds add up to %s ms. A copy moves "
      "%s GB/s in caches, and %s GB/s through as much memory as the step "
      "takes.",
      Milliseconds(seconds), Milliseconds(bound),
      Significant(result.copy.value_or(0) / 1e9, 3),
      Significant(result.far_copy.value_or(0) / 1e9, 3)));
  if (!result.layout.empty()) {
    section.notes.push_back(
        absl::StrCat("The layout of activations is ", result.layout, "."));
  }
  if (const std::optional<BatchNormTimes> times = BatchNormTimesOf(result)) {
    section.notes.push_back(absl::StrFormat(
        "Batch norm, with its addition and ReLU: %s ms forward, %s of the "
        "copy's bound; %s ms backward, %s; together %s, and %s of the copy "
        "through the step's memory.",
        Milliseconds(times->forward_seconds),
        Percent(times->forward_share, /*decimals=*/1),
        Milliseconds(times->backward_seconds),
        Percent(times->backward_share, /*decimals=*/1),
        Percent(times->share, /*decimals=*/1),
        Percent(times->far_share, /*decimals=*/1)));
  }
  return section;
}

// Explains the columns that a GPU has.
std::vector<report::Term> GpuStepTerms() {
  std::vector<report::Term> terms;
  for (report::Term& term : StepTerms()) {
    if (term.name == "ms, range" || term.name == "over ours") {
      terms.push_back(std::move(term));
    }
  }
  return terms;
}

// Returns a chart of PyTorch's best images/s as a share of ours, by case.
report::Chart ChartOf(const StepReport& report) {
  report::Chart chart = {.title = "Images a second",
                         .x_title = "network",
                         .y_title = "of ours",
                         .percent = true};
  chart.series = {{.name = "ours", .color = "blue"},
                  {.name = "PyTorch's best", .color = "orange"}};
  for (const StepResult& result : report.results) {
    chart.places.push_back(Name(result.one));
    chart.series[0].values.push_back(1.0);
    const StepRow* const best = FastestNewestPeer(result);
    chart.series[1].values.push_back(
        best == nullptr ? std::nullopt
                        : std::optional(1 / best->ratio->median));
  }
  return chart;
}

}  // namespace

report::Document StepDocument(const StepReport& report, bool finished) {
  report::Document document = {
      .name = "lockstep.step",
      .title = "Lockstep training step report",
      .about = absl::StrCat(
          "one training step: forward, backward, update",
          report.gpu.empty() ? "" : absl::StrCat("; on ", report.gpu)),
      .origin = report.origin};
  for (const StepResult& result : report.results) {
    document.sections.push_back(SectionOf(result));
    if (!result.layers.empty()) {
      document.sections.push_back(LayerSectionOf(result));
    }
  }
  if (!finished) return document;
  const bool on_gpu = report.settings.device == ComputeDevice::kCuda;
  if (!document.sections.empty()) {
    document.sections[0].charts = {ChartOf(report)};
  }
  document.terms = on_gpu ? GpuStepTerms() : StepTerms();
  for (const std::string& missing : report.missing) {
    document.remarks.push_back(absl::StrCat("not available: ", missing));
  }
  if (!on_gpu) {
    document.remarks.push_back(VectorUnitRemark(report.vector_unit));
  }
  document.bars = BarsOf(report);
  document.method = {
      "Each subject trains in a process of its own, from the same weights on "
      "the same batch; the processes take turns. The loss and all gradients of "
      "the first step were compared before anything was timed."};
  if (on_gpu) {
    document.method.push_back(
        "Times are those of events on the GPU, from the end of a step to the "
        "end of the next. Ours copies the batch to the GPU for every step; "
        "PyTorch's batch stays there. The first steps are compared with ours "
        "on the CPU.");
  }
  document.data = DataOf(report);
  return document;
}

std::vector<report::Term> StepTerms() {
  return {
      {"ms, range",
       "of a step: the median of each turn's steps; then the median over "
       "rounds, and the range."},
      {"peak",
       "the share of the operations that the cores do if they only multiply "
       "and add in registers, measured in the same round."},
      {"MiB",
       "the peak of memory during steps, less the memory before anything was "
       "loaded, and less the weights: batch, activations, gradients."},
      {"over ours",
       "the line's time over ours in the same round, the median and the "
       "range: above 1, ours is faster."},
      {"chosen",
       "the algorithm of layers that have a choice: direct or Winograd "
       "convolution, products of matrices, lanes of sixteen samples, or mixed: "
       "not the same in all directions. Winograd multiplies less than is "
       "counted, so its share may exceed 100%."},
      {"bound",
       "the least time over the time taken. The least time is the longer of "
       "two: the layers' operations at the peak, and their bytes (each tensor "
       "once) at a copy's bandwidth."},
      BarsTerm()};
}

}  // namespace lockstep::benchmarks
