// The report as a document: JSON keys, table columns and texts. All numbers
// come from the report.
#include "benchmarks/scaling/document.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/data_types.h"
#include "base/group_digits.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/scaling/bars.h"
#include "benchmarks/scaling/results.h"
#include "benchmarks/scaling/settings.h"
#include "benchmarks/scaling/turn.h"
#include "models/networks/networks.h"
#include "models/train/device.h"
#include "report/document.h"

namespace lockstep::benchmarks {
namespace {

using report::Cell;
using report::Chart;
using report::Counted;
using report::Milliseconds;
using report::Percent;
using report::Series;
using report::Value;

Value PartsData(const StepParts& parts) {
  return {{"compute", parts.compute},
          {"exposed_communication", parts.exposed_communication},
          {"data_wait", parts.data_wait},
          {"rest", parts.rest}};
}

Value RoundData(const RoundSample& round) {
  return {{"images_per_second", round.images_per_second},
          {"step_seconds", round.step_seconds},
          {"parts_seconds", PartsData(round.parts)},
          {"imbalance", round.imbalance},
          {"kept_waiting", round.kept_waiting},
          {"loss", round.loss}};
}

// Returns null for PyTorch, which does not report its algorithms.
Value ConvolutionData(const ConfigurationReport& at) {
  const std::string& name = at.measured.rounds[0].convolution;
  return name.empty() ? Value() : Value(name);
}

// Returns the number, or null for 0, which is not known.
template <typename Number>
Value KnownOrNull(Number number) {
  return number == 0 ? Value() : Value(number);
}

Value ConfigurationData(const ScalingReport& report,
                        const ConfigurationReport& at) {
  Value rounds = Value::Array();
  for (const RoundSample& round : at.measured.rounds) {
    rounds.Add(RoundData(round));
  }
  return {{"world_size", at.world_size()},
          {"global_batch", at.global_batch()},
          {"oversubscribed", at.oversubscribed},
          {"shared_gpu", at.on_gpus() && at.oversubscribed},
          {"convolution", ConvolutionData(at)},
          {"images_per_second", Value{{"median", at.images_per_second},
                                      {"min", at.slowest_round},
                                      {"max", at.fastest_round},
                                      {"rounds", at.measured.rounds.size()}}},
          {"epoch_seconds",
           Value{{"median", report.EpochSeconds(at.images_per_second)},
                 {"min", report.EpochSeconds(at.fastest_round)},
                 {"max", report.EpochSeconds(at.slowest_round)}}},
          {"speedup", at.speedup},
          {"efficiency", at.efficiency},
          {"step_seconds", Value{{"p50", at.step_p50},
                                 {"p99", at.step_p99},
                                 {"mean", at.step_seconds()},
                                 {"steps", at.step_count}}},
          {"parts_seconds", PartsData(at.parts)},
          {"lost", PartsData(at.lost)},
          {"imbalance", at.imbalance},
          {"kept_waiting", at.kept_waiting},
          {"gpu_memory_bytes", KnownOrNull(at.gpu_memory_bytes)},
          {"gpu_watts", KnownOrNull(at.gpu_watts)},
          {"rounds", std::move(rounds)}};
}

bool OnGpus(const ScalingReport& report) {
  return report.settings.device == ComputeDevice::kCuda;
}

// Calls `take` with each round of each configuration.
template <typename Take>
void ForEachRound(const ScalingReport& report, const Take& take) {
  for (const ModeReport& mode : report.modes) {
    for (const ConfigurationReport& at : mode.configurations) {
      for (const RoundSample& round : at.measured.rounds) take(at, round);
    }
  }
}

// Returns the names of the GPUs, each once, separated by commas.
std::string GpuNames(const ScalingReport& report) {
  std::vector<std::string> names;
  ForEachRound(report,
               [&](const ConfigurationReport&, const RoundSample& round) {
                 for (const std::string& name : round.gpus) {
                   if (std::ranges::count(names, name) == 0) {
                     names.push_back(name);
                   }
                 }
               });
  return absl::StrJoin(names, ", ");
}

// Returns a sentence for each world size at which the hosts sum the gradients.
std::vector<std::string> HostsSumRemarks(const ScalingReport& report) {
  std::vector<std::string> remarks;
  ForEachRound(
      report, [&](const ConfigurationReport& at, const RoundSample& round) {
        if (round.hosts_sum.empty()) return;
        std::string remark =
            absl::StrCat("At ", Counted(at.world_size(), "rank"),
                         " the hosts sum the gradients: ", round.hosts_sum);
        if (std::ranges::count(remarks, remark) == 0) {
          remarks.push_back(std::move(remark));
        }
      });
  return remarks;
}

// Return the lists as the flags spell them, such as "processes,threads".
std::string BackendsOf(const ScalingSettings& settings) {
  return absl::StrJoin(settings.backends, ",",
                       [](std::string* out, RankKind ranks) {
                         absl::StrAppend(out, Name(ranks));
                       });
}
std::string TypesOf(const ScalingSettings& settings) {
  return absl::StrJoin(settings.types, ",",
                       [](std::string* out, DataType type) {
                         absl::StrAppend(out, Name(type));
                       });
}

Value DataOf(const ScalingReport& report) {
  const ScalingSettings& settings = report.settings;
  Value modes = Value::Array();
  for (const ModeReport& mode : report.modes) {
    Value configurations = Value::Array();
    for (const ConfigurationReport& at : mode.configurations) {
      configurations.Add(ConfigurationData(report, at));
    }
    modes.Add(Value{{"mode", Name(mode.mode)},
                    {"backend", Name(mode.variant.ranks)},
                    {"type", Name(mode.variant.type)},
                    {"baseline_world_size", mode.baseline().world_size()},
                    {"limits", mode.limits},
                    {"configurations", std::move(configurations)}});
  }
  return {{"gpu", report::TextOrNull(GpuNames(report))},
          {"settings", Value{{"device", Name(settings.device)},
                             {"model", settings.model},
                             {"dataset", settings.dataset},
                             {"train_samples", settings.train_samples},
                             {"channels", settings.input.channels},
                             {"height", settings.input.height},
                             {"width", settings.input.width},
                             {"backend", BackendsOf(settings)},
                             {"type", TypesOf(settings)},
                             {"lr", settings.learning_rate},
                             {"threads_per_rank", 1},
                             {"world_sizes", settings.world_sizes},
                             {"batch_size", settings.batch_size},
                             {"rounds", settings.rounds},
                             {"steps", settings.steps},
                             {"warmup_steps", settings.warmup_steps},
                             {"pytorch", report.pytorch}}},
          {"modes", std::move(modes)}};
}

// Returns the words before a note about one variant, such as "threads: ". Empty
// if there is only one variant.
std::string NotePrefix(const ScalingReport& report, const ModeReport& mode) {
  const std::string name = NameOf(report.settings, mode.variant);
  return name.empty() ? "" : name + ": ";
}

// Formats images/s. The text has at most seven characters up to ten million.
std::string Throughput(double images_per_second) {
  if (images_per_second < 99.95) {
    return absl::StrFormat("%.1f", images_per_second);
  }
  return images_per_second < 999999.5
             ? GroupDigits(std::llround(images_per_second))
             : GroupDigits(std::llround(images_per_second / 1000)) + "k";
}

std::vector<Cell> RowCells(const ConfigurationReport& at) {
  const double step = at.step_seconds();
  std::vector<Cell> cells = {
      absl::StrCat(at.world_size(), at.oversubscribed ? "*" : " "),
      Throughput(at.images_per_second),
      absl::StrCat(Throughput(at.slowest_round), "..",
                   Throughput(at.fastest_round)),
      absl::StrFormat("%.2fx", at.speedup),
      Percent(at.efficiency, 1),
      Milliseconds(at.step_p50),
      Milliseconds(at.step_p99)};
  if (at.measured.configuration.ranks == RankKind::kDdp) {
    cells.insert(cells.end(), 5, "-");  // The parts of its steps are not known.
    return cells;
  }
  for (double StepParts::*const part : kStepParts) {
    cells.push_back(Percent(at.parts.*part / step, 1));
  }
  cells.push_back(Percent(at.imbalance, 1));
  return cells;
}

// The reports of one mode, by variant.
using Variants = std::span<const ModeReport>;

report::Table TableOf(const ScalingReport& report, Variants variants) {
  report::Table table = {.columns = {{.title = "ranks"},
                                     {.title = "images/s"},
                                     {.title = "from..to"},
                                     {.title = "speed-up"},
                                     {.title = "efficiency"},
                                     {.title = "p50 ms"},
                                     {.title = "p99 ms"},
                                     {.title = "compute"},
                                     {.title = "comm"},
                                     {.title = "data"},
                                     {.title = "rest"},
                                     {.title = "imbal"}}};
  for (const ModeReport& mode : variants) {
    const std::string name = NameOf(report.settings, mode.variant);
    if (!name.empty()) table.rows.push_back({name});
    for (const ConfigurationReport& at : mode.configurations) {
      table.rows.push_back(RowCells(at));
    }
  }
  return table;
}

// Returns "2 GPUs", or "2 ranks" if ranks share a GPU or are on a CPU.
std::string RankCount(const ConfigurationReport& at) {
  return Counted(at.world_size(),
                 at.on_gpus() && !at.oversubscribed ? "GPU" : "rank");
}

// Returns a note such as "An epoch of 60,000 images takes 9.41 s at 1 rank,
// 4.80 s at 2 ranks".
std::string EpochNote(const ScalingReport& report, const ModeReport& mode) {
  std::vector<std::string> times;
  for (const ConfigurationReport& at : mode.configurations) {
    times.push_back(absl::StrFormat(
        "%s s at %s",
        report::Significant(report.EpochSeconds(at.images_per_second), 3),
        RankCount(at)));
  }
  const std::string lead = NotePrefix(report, mode);
  return absl::StrCat(lead, lead.empty() ? "An" : "an", " epoch of ",
                      GroupDigits(report.settings.train_samples),
                      " images takes ", absl::StrJoin(times, ", "));
}

// Returns a note such as "Memory in use on a GPU, and its mean power: 3.10 GiB,
// 412 W at 1 GPU; 3.30 GiB, 398 W at 2 GPUs".
std::string UsageNote(const ScalingReport& report, const ModeReport& mode) {
  std::vector<std::string> parts;
  for (const ConfigurationReport& at : mode.configurations) {
    if (at.gpu_memory_bytes == 0) continue;
    parts.push_back(absl::StrFormat(
        "%.2f GiB, %s at %s",
        static_cast<double>(at.gpu_memory_bytes) * 0x1p-30,
        at.gpu_watts == 0 ? "power not known"
                          : absl::StrFormat("%.0f W", at.gpu_watts),
        RankCount(at)));
  }
  const std::string lead = NotePrefix(report, mode);
  if (parts.empty()) {
    return absl::StrCat(lead,
                        "Memory and power are not known: no management "
                        "library of NVIDIA's answers for the GPUs");
  }
  return absl::StrCat(lead, "Memory in use on a GPU, and its mean power: ",
                      absl::StrJoin(parts, "; "));
}

std::vector<std::string> NotesOf(const ScalingReport& report,
                                 Variants variants) {
  std::vector<std::string> notes;
  if (!report.origin.hosts.empty()) {
    notes.push_back("Hosts: " + HostsText(report.origin.hosts));
  }
  const std::vector<ConfigurationReport>& all = variants[0].configurations;
  if (std::ranges::count(all, true, &ConfigurationReport::oversubscribed) > 0) {
    notes.push_back(OnGpus(report) ? "* ranks share a GPU: times say nothing"
                                   : absl::StrCat("* more ranks than cores (",
                                                  report.origin.machine.cores,
                                                  "): they take turns"));
  }
  if (const int base = variants[0].baseline().world_size(); base != 1) {
    notes.push_back(absl::StrCat("Speed-up and efficiency are relative to ",
                                 base,
                                 " ranks, the smallest world size measured."));
  }
  if (report.settings.train_samples > 0) {
    for (const ModeReport& mode : variants) {
      notes.push_back(EpochNote(report, mode));
    }
  }
  if (OnGpus(report)) {
    for (const ModeReport& mode : variants) {
      notes.push_back(UsageNote(report, mode));
    }
  }
  return notes;
}

constexpr const char* kColors[] = {"accent", "orange", "green",
                                   "purple", "yellow", "red"};

// Completes `chart` with a place for each world size, a series for each
// variant, and an ideal series for each type. value: converts images/s to the
// value that the chart shows.
Chart ChartOf(const ScalingReport& report, Variants variants, Chart chart,
              Series::Kind kind,
              double (*value)(const ScalingReport& report,
                              const ConfigurationReport& at,
                              double images_per_second)) {
  chart.x_title = "ranks";
  std::vector<Series> ideals;
  for (const ConfigurationReport& at : variants[0].configurations) {
    chart.places.push_back(absl::StrCat(at.world_size()));
  }
  for (size_t i = 0; i < variants.size(); ++i) {
    const ModeReport& mode = variants[i];
    const std::string name = NameOf(report.settings, mode.variant);
    Series measured = {.name = name.empty() ? "measured" : name,
                       .kind = kind,
                       .color = kColors[i % std::size(kColors)]};
    Series ideal = {
        .name = report.settings.types.size() == 1
                    ? "ideal"
                    : absl::StrCat("ideal, ", Name(mode.variant.type)),
        .kind = Series::Kind::kIdeal,
        .color = "ideal"};
    const ConfigurationReport& base = mode.baseline();
    for (const ConfigurationReport& at : mode.configurations) {
      measured.values.push_back(value(report, at, at.images_per_second));
      measured.ranges.push_back(
          std::minmax({value(report, at, at.slowest_round),
                       value(report, at, at.fastest_round)}));
      ideal.values.push_back(
          value(report, at,
                base.images_per_second / base.world_size() * at.world_size()));
    }
    chart.series.push_back(std::move(measured));
    if (i < report.settings.types.size()) ideals.push_back(std::move(ideal));
  }
  std::ranges::move(ideals, std::back_inserter(chart.series));
  return chart;
}

Chart ThroughputChart(const ScalingReport& report, Variants variants) {
  Chart chart =
      ChartOf(report, variants, {.title = "Throughput", .y_title = "images/s"},
              Series::Kind::kLine,
              [](const ScalingReport&, const ConfigurationReport&,
                 double images) { return images; });
  for (const ConfigurationReport& at : variants[0].configurations) {
    chart.positions.push_back(at.world_size());
  }
  return chart;
}

Chart EpochChart(const ScalingReport& report, Variants variants) {
  return ChartOf(report, variants,
                 {.title = "An epoch",
                  .y_title = "seconds an epoch",
                  .decimals = 2,
                  .unit = " s"},
                 Series::Kind::kBars,
                 [](const ScalingReport& of, const ConfigurationReport&,
                    double images) { return of.EpochSeconds(images); });
}

Chart EfficiencyChart(const ScalingReport& report, Variants variants) {
  Chart chart = ChartOf(
      report, variants,
      {.title = "Efficiency", .y_title = "efficiency", .percent = true},
      Series::Kind::kBars,
      [](const ScalingReport&, const ConfigurationReport& at, double images) {
        return at.efficiency * (images / at.images_per_second);
      });
  // The bars have labels instead of ranges, because the two would overlap.
  for (Series& series : chart.series) {
    series.ranges.clear();
    if (series.kind == Series::Kind::kIdeal) continue;
    for (const std::optional<double>& value : series.values) {
      series.labels.push_back(Percent(*value));
    }
    // Every first label is 100%. Side by side they would overlap.
    if (variants.size() > 1) series.labels[0] = "";
  }
  return chart;
}

// Returns a chart with a bar for each configuration of each variant but kDdp.
Chart PartsChart(const ScalingReport& report, Variants variants) {
  Chart chart = {.title = "Where a step goes",
                 .x_title = "ranks",
                 .y_title = "ms a step",
                 .decimals = 2,
                 .unit = " ms"};
  constexpr std::pair<const char*, const char*> kSeries[] = {
      {"compute", "blue"},
      {"exposed communication", "orange"},
      {"data wait", "green"},
      {"rest", "gray"}};
  for (const auto& [name, color] : kSeries) {
    chart.series.push_back({.name = name, .color = color, .stack = "step"});
  }
  // The ideal step is the baseline's step, times the ratio of the images of a
  // rank to those of a rank of the baseline.
  chart.series.push_back({.name = "ideal step",
                          .kind = Series::Kind::kLevel,
                          .color = "text",
                          .stack = "ideal"});
  for (const ModeReport& mode : variants) {
    if (mode.variant.ranks == RankKind::kDdp) continue;
    const ConfigurationReport& base = mode.baseline();
    const std::string name = NameOf(report.settings, mode.variant);
    for (const ConfigurationReport& at : mode.configurations) {
      chart.places.push_back(
          absl::StrCat(at.world_size(), name.empty() ? "" : " ", name));
      for (size_t i = 0; i < std::size(kStepParts); ++i) {
        chart.series[i].values.push_back(1e3 * (at.parts.*kStepParts[i]));
      }
      chart.series.back().values.push_back(1e3 * base.step_seconds() *
                                           at.batch_per_rank() /
                                           base.batch_per_rank());
    }
  }
  return chart;
}

report::Section SectionOf(const ScalingReport& report, Variants variants) {
  const bool strong = variants[0].mode == ScalingMode::kStrong;
  report::Section section = {
      .title = strong ? "Strong scaling" : "Weak scaling",
      .about =
          absl::StrCat("a step is ", GroupDigits(report.settings.batch_size),
                       strong ? " images in all" : " images on each rank"),
      .table = TableOf(report, variants),
      .notes = NotesOf(report, variants),
      .charts = {ThroughputChart(report, variants),
                 EfficiencyChart(report, variants),
                 PartsChart(report, variants)}};
  if (report.settings.train_samples > 0) {
    section.charts.push_back(EpochChart(report, variants));
  }
  if (variants.size() == 1) {
    section.conclusion = variants[0].limits;
    return section;
  }
  for (const ModeReport& mode : variants) {
    section.notes.push_back(NotePrefix(report, mode) + mode.limits);
  }
  return section;
}

std::string DataText(const ScalingSettings& settings) {
  const NetworkInput& input = settings.input;
  return absl::StrCat(GroupDigits(settings.train_samples), " images of ",
                      input.height, " x ", input.width, " x ", input.channels,
                      ", ", input.classes, " classes");
}

std::vector<report::Term> Terms(bool on_gpus) {
  std::vector<report::Term> terms = {
      {"from..to", "images/s of the slowest and the fastest round."},
      {"speed-up, efficiency",
       "images/s over images/s at the smallest world size p; efficiency "
       "is speed-up x p / ranks."},
      {"p50, p99", "step times, each on its slowest rank."},
      {"compute, comm (exposed communication), data (data wait), rest",
       absl::StrCat("shares of a step: forward, backward and update; waiting "
                    "for summed gradients, or for a slower rank, after "
                    "backward; ",
                    on_gpus ? "the GPU's time from the end of a step to the "
                              "beginning of the next, for the host and for "
                              "the copy of the batch"
                            : "gathering the batch",
                    "; and the time that none of these explains.")},
      {"imbal",
       "how much longer the slowest rank of a step computes than the "
       "mean."}};
  if (!on_gpus) terms.push_back(BarsTerm());
  return terms;
}

// Returns what a rank computes on: "one thread each", or "one GPU each (NAME)".
std::string RankDevice(const ScalingReport& report) {
  if (!OnGpus(report)) return "one thread each";
  return absl::StrCat("one GPU each (", GpuNames(report), ")");
}

}  // namespace

report::Document ScalingDocument(const ScalingReport& report) {
  const ScalingSettings& settings = report.settings;
  const std::string length =
      absl::StrCat(Counted(settings.rounds, "round"), " of ", settings.steps,
                   " timed steps");
  report::Document document =
      {.name = "lockstep.scaling",
       .title = "Lockstep scaling report",
       .about =
           absl::StrCat(settings.model, " on ", settings.dataset, ", ",
                        TypesOf(settings), "; ranks are ", BackendsOf(settings),
                        ", ", RankDevice(report), "; ", length),
       .origin = report.origin,
       .terms = Terms(OnGpus(report)),
       .bars = BarsOf(report),
       .facts = {{"Ranks",
                  absl::StrCat(BackendsOf(settings), ", ", RankDevice(report))},
                 {"Data", DataText(settings)},
                 {"Length",
                  absl::StrCat(length, " after ", settings.warmup_steps,
                               " warm-up steps")}},
       .method =
           {"Strong scaling: the global batch stays the same, so each rank has "
            "less to do as ranks are added; ideally a step takes 1/P of the "
            "time. Weak scaling: each rank's batch stays the same; ideally a "
            "step takes the same time.",
            "Every round runs every configuration once, so a drift of the "
            "machine affects all of them alike; images/s and the parts of a "
            "step "
            "are those of the median round. A run counts only if it had the "
            "requested world size, all ranks ended with the same "
            "parameters bit for bit, and the loss was finite.",
            "One rank alone sends nothing, so it is run once, with the first "
            "backend, and once by PyTorch. An epoch takes its images over "
            "images/s."},
       .data = DataOf(report)};
  if (!report.pytorch.empty()) {
    document.facts.push_back({"ddp", report.pytorch});
  }
  if (OnGpus(report)) {
    document.method.push_back(
        "Times are those of events on each rank's GPU. The host reads no "
        "result before the last timed step, so no step waits for it to do "
        "so.");
  }
  for (const std::string& remark : {settings.skipped, report.ended}) {
    if (!remark.empty()) document.remarks.push_back(remark);
  }
  std::ranges::move(HostsSumRemarks(report),
                    std::back_inserter(document.remarks));
  std::ranges::move(ControlRemarks(report),
                    std::back_inserter(document.remarks));
  const size_t variants = VariantsOf(settings).size();
  for (size_t i = 0; i + variants <= report.modes.size(); i += variants) {
    document.sections.push_back(
        SectionOf(report, Variants(report.modes).subspan(i, variants)));
  }
  return document;
}

}  // namespace lockstep::benchmarks
