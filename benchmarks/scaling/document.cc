// The report's forms: keys, columns and words. Every number comes from the
// report.
#include "report/document.h"

#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/harness/ranks.h"
#include "benchmarks/scaling/report.h"

namespace lockstep::benchmarks {
namespace {

using report::Cell;
using report::Chart;
using report::Counted;
using report::Grouped;
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

Value ConfigurationData(const ConfigurationReport& at) {
  Value rounds = Value::Array();
  for (const RoundSample& round : at.measured.rounds) {
    rounds.Add(RoundData(round));
  }
  return {{"world_size", at.world_size()},
          {"global_batch", at.global_batch()},
          {"oversubscribed", at.oversubscribed},
          {"images_per_second", Value{{"median", at.images_per_second},
                                      {"min", at.slowest_round},
                                      {"max", at.fastest_round},
                                      {"rounds", at.measured.rounds.size()}}},
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
          {"rounds", std::move(rounds)}};
}

Value DataOf(const ScalingReport& report) {
  const ScalingSettings& settings = report.settings;
  Value modes = Value::Array();
  for (const ModeReport& mode : report.modes) {
    Value configurations = Value::Array();
    for (const ConfigurationReport& at : mode.configurations) {
      configurations.Add(ConfigurationData(at));
    }
    modes.Add(Value{{"mode", Name(mode.mode)},
                    {"baseline_world_size", mode.baseline().world_size()},
                    {"limits", mode.limits},
                    {"configurations", std::move(configurations)}});
  }
  return {{"settings", Value{{"model", settings.model},
                             {"dataset", settings.dataset},
                             {"backend", Name(settings.ranks)},
                             {"threads_per_rank", 1},
                             {"world_sizes", settings.world_sizes},
                             {"batch_size", settings.batch_size},
                             {"rounds", settings.rounds},
                             {"steps", settings.steps},
                             {"warmup_steps", settings.warmup_steps}}},
          {"modes", std::move(modes)}};
}

// In at most seven characters up to ten million.
std::string Throughput(double images_per_second) {
  return images_per_second < 999999.5
             ? Grouped(std::llround(images_per_second))
             : Grouped(std::llround(images_per_second / 1000)) + "k";
}

std::vector<Cell> RowCells(const ConfigurationReport& at) {
  const double step = at.step_seconds();
  return {absl::StrCat(at.world_size(), at.oversubscribed ? "*" : " "),
          Throughput(at.images_per_second),
          absl::StrCat(Throughput(at.slowest_round), "..",
                       Throughput(at.fastest_round)),
          absl::StrFormat("%.2fx", at.speedup),
          Percent(at.efficiency, 1),
          Milliseconds(at.step_p50),
          Milliseconds(at.step_p99),
          Percent(at.parts.compute / step, 1),
          Percent(at.parts.exposed_communication / step, 1),
          Percent(at.parts.data_wait / step, 1),
          Percent(at.parts.rest / step, 1),
          Percent(at.imbalance, 1)};
}

report::Table TableOf(const ModeReport& mode) {
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
  for (const ConfigurationReport& at : mode.configurations) {
    table.rows.push_back(RowCells(at));
  }
  return table;
}

std::vector<std::string> NotesOf(const ScalingReport& report,
                                 const ModeReport& mode) {
  std::vector<std::string> notes;
  for (const ConfigurationReport& at : mode.configurations) {
    if (!at.oversubscribed) continue;
    notes.push_back(absl::StrCat("* more ranks than cores (",
                                 report.origin.machine.cores,
                                 "): they take turns"));
    break;
  }
  if (const int base = mode.baseline().world_size(); base != 1) {
    notes.push_back(absl::StrCat("Speed-up and efficiency are relative to ",
                                 base,
                                 " ranks, the smallest world size measured."));
  }
  return notes;
}

// `value` of every configuration.
std::vector<std::optional<double>> Values(
    const ModeReport& mode, double (*value)(const ConfigurationReport& at)) {
  std::vector<std::optional<double>> values;
  for (const ConfigurationReport& at : mode.configurations) {
    values.push_back(value(at));
  }
  return values;
}

Chart ChartOf(const ModeReport& mode, const char* title, const char* y_title) {
  Chart chart = {.title = title, .x_title = "ranks", .y_title = y_title};
  for (const ConfigurationReport& at : mode.configurations) {
    chart.places.push_back(absl::StrCat(at.world_size()));
  }
  return chart;
}

Chart ThroughputChart(const ModeReport& mode) {
  Chart chart = ChartOf(mode, "Throughput", "images/s");
  Series measured = {.name = "measured",
                     .kind = Series::Kind::kLine,
                     .values = Values(mode, [](const ConfigurationReport& at) {
                       return at.images_per_second;
                     })};
  Series ideal = {
      .name = "ideal", .kind = Series::Kind::kIdeal, .color = "ideal"};
  const ConfigurationReport& base = mode.baseline();
  for (const ConfigurationReport& at : mode.configurations) {
    chart.positions.push_back(at.world_size());
    measured.ranges.emplace_back(at.slowest_round, at.fastest_round);
    ideal.values.push_back(base.images_per_second / base.world_size() *
                           at.world_size());
  }
  chart.series = {measured, ideal};
  return chart;
}

Chart EfficiencyChart(const ModeReport& mode) {
  Chart chart = ChartOf(mode, "Efficiency", "efficiency");
  chart.percent = true;
  Series measured = {.name = "measured",
                     .values = Values(mode, [](const ConfigurationReport& at) {
                       return at.efficiency;
                     })};
  for (const ConfigurationReport& at : mode.configurations) {
    measured.labels.push_back(Percent(at.efficiency));
  }
  chart.series = {
      measured,
      {.name = "ideal",
       .kind = Series::Kind::kIdeal,
       .color = "ideal",
       .values = Values(mode, [](const ConfigurationReport&) { return 1.0; })}};
  return chart;
}

// The ideal step: the baseline's, times the work that a rank has in comparison.
Series IdealSteps(const ModeReport& mode) {
  const ConfigurationReport& base = mode.baseline();
  Series ideal = {.name = "ideal step",
                  .kind = Series::Kind::kLevel,
                  .color = "text",
                  .stack = "ideal"};
  for (const ConfigurationReport& at : mode.configurations) {
    ideal.values.push_back(1e3 * base.step_seconds() * at.batch_per_rank() /
                           base.batch_per_rank());
  }
  return ideal;
}

Chart PartsChart(const ModeReport& mode) {
  Chart chart = ChartOf(mode, "Where a step goes", "ms a step");
  chart.decimals = 2;
  chart.unit = " ms";
  constexpr std::pair<const char*, const char*> kSeries[] = {
      {"compute", "blue"},
      {"exposed communication", "orange"},
      {"data wait", "green"},
      {"rest", "gray"}};
  for (size_t i = 0; i < std::size(kSeries); ++i) {
    Series series = {
        .name = kSeries[i].first, .color = kSeries[i].second, .stack = "step"};
    for (const ConfigurationReport& at : mode.configurations) {
      series.values.push_back(1e3 * (at.parts.*kStepParts[i]));
    }
    chart.series.push_back(std::move(series));
  }
  chart.series.push_back(IdealSteps(mode));
  return chart;
}

report::Section SectionOf(const ScalingReport& report, const ModeReport& mode) {
  const bool strong = mode.mode == ScalingMode::kStrong;
  return {
      .title = strong ? "Strong scaling" : "Weak scaling",
      .about = absl::StrCat("a step is ", Grouped(report.settings.batch_size),
                            strong ? " images in all" : " images on each rank"),
      .table = TableOf(mode),
      .notes = NotesOf(report, mode),
      .conclusion = mode.limits,
      .charts = {ThroughputChart(mode), EfficiencyChart(mode),
                 PartsChart(mode)}};
}

std::vector<report::Term> Terms() {
  return {{"from..to", "images/s of the slowest and the fastest round."},
          {"speed-up, efficiency",
           "images/s over that of the smallest world size p; that x p / "
           "ranks."},
          {"p50, p99", "step times, each as its slowest rank saw it."},
          {"compute, comm (exposed communication), data (data wait), rest",
           "shares of a step: forward, backward and update; waiting for summed "
           "gradients, or a slower rank, after backward; gathering the batch; "
           "what none of these explains."},
          {"imbal",
           "how much longer the slowest rank of a step computes than the "
           "mean."}};
}

}  // namespace

report::Document ScalingDocument(const ScalingReport& report) {
  const ScalingSettings& settings = report.settings;
  const std::string length =
      absl::StrCat(Counted(settings.rounds, "round"), " of ", settings.steps,
                   " timed steps");
  report::Document document = {
      .name = "lockstep.scaling",
      .title = "Lockstep scaling report",
      .about =
          absl::StrCat(settings.model, " on ", settings.dataset, "; ranks are ",
                       Name(settings.ranks), ", one thread each; ", length),
      .origin = report.origin,
      .terms = Terms(),
      .facts = {{"Ranks",
                 absl::StrCat(Name(settings.ranks), ", 1 thread each")},
                {"Length",
                 absl::StrCat(length, " after ", settings.warmup_steps,
                              " warm-up steps")}},
      .method =
          {"Strong scaling: the global batch stays the same, so each rank has "
           "less to do as ranks are added; ideally a step takes 1/P of the "
           "time. Weak scaling: each rank's batch stays the same; ideally a "
           "step takes the same time.",
           "Every round runs every configuration once, so a drift of the "
           "machine meets all of them alike; images/s and the parts of a step "
           "are those of the median round. A run counts only if it had the "
           "world size that was asked for, all ranks ended with the same "
           "parameters bit for bit, and the loss was finite."},
      .data = DataOf(report)};
  for (const ModeReport& mode : report.modes) {
    document.sections.push_back(SectionOf(report, mode));
  }
  return document;
}

}  // namespace lockstep::benchmarks
