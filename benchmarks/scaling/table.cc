// Formatting only: every number comes from the report.
#include "benchmarks/scaling/table.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/scaling/plan.h"
#include "report/machine.h"
#include "report/terminal.h"

namespace lockstep::benchmarks {
namespace {

constexpr char kHeading[] =
    " ranks images/s     from .. to  speed-up efficiency"
    " p50 ms p99 ms compute  comm  data  rest  imbal\n";

constexpr char kLegend[] =
    "from .. to: images/s of the slowest and the fastest round. compute, comm "
    "(exposed communication), data (data wait), rest: shares of a step. imbal: "
    "how much longer the slowest rank of a step computes than the mean.";

// 1234567 as "1,234,567".
std::string WithThousands(double value) {
  const std::string digits = absl::StrCat(std::llround(value));
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

// In at most seven characters up to ten million.
std::string Throughput(double images_per_second) {
  return images_per_second < 999999.5
             ? WithThousands(images_per_second)
             : WithThousands(images_per_second / 1000) + "k";
}

std::string Percent(double share) {
  return absl::StrFormat("%.1f%%", 100 * share);
}

std::string Milliseconds(double seconds) {
  const double ms = 1e3 * seconds;
  return absl::StrFormat("%.*f", ms < 100 ? 2 : ms < 1000 ? 1 : 0, ms);
}

std::string FormatRow(const ConfigurationReport& at) {
  const double step = at.step_seconds();
  return absl::StrFormat(
      "%5d%s%9s %7s..%-7s%8.2fx%11s%7s%7s%8s%6s%6s%6s%7s\n", at.world_size(),
      at.oversubscribed ? "*" : " ", Throughput(at.images_per_second),
      Throughput(at.slowest_round), Throughput(at.fastest_round), at.speedup,
      Percent(at.efficiency), Milliseconds(at.step_p50),
      Milliseconds(at.step_p99), Percent(at.parts.compute / step),
      Percent(at.parts.exposed_communication / step),
      Percent(at.parts.data_wait / step), Percent(at.parts.rest / step),
      Percent(at.imbalance));
}

std::string ModeTitle(const ScalingReport& report, ScalingMode mode) {
  const auto batch = static_cast<double>(report.settings.batch_size);
  return mode == ScalingMode::kStrong
             ? absl::StrCat("Strong scaling: a step is ", WithThousands(batch),
                            " images in all\n")
             : absl::StrCat("Weak scaling: a step is ", WithThousands(batch),
                            " images on each rank\n");
}

std::string FormatMode(const ScalingReport& report, const ModeReport& mode) {
  std::string text = absl::StrCat(ModeTitle(report, mode.mode), kHeading);
  bool oversubscribed = false;
  for (const ConfigurationReport& at : mode.configurations) {
    absl::StrAppend(&text, FormatRow(at));
    oversubscribed = oversubscribed || at.oversubscribed;
  }
  if (oversubscribed) {
    absl::StrAppend(&text, "  * more ranks than cores (", report.machine.cores,
                    "): they take turns\n");
  }
  const int base = mode.baseline().world_size();
  if (base != 1) {
    absl::StrAppend(&text, "  Speed-up and efficiency are relative to ", base,
                    " ranks, the smallest world size measured.\n");
  }
  return absl::StrCat(text, WrapText(mode.limits, kTableColumns));
}

std::string FormatSettings(const ScalingReport& report) {
  const ScalingSettings& settings = report.settings;
  const Machine& machine = report.machine;
  const std::string what = absl::StrCat(
      settings.model, " on ", settings.dataset, "; ranks are ",
      std::string(RankKindName(settings.ranks)), ", one thread each; ",
      settings.rounds, settings.rounds == 1 ? " round of " : " rounds of ",
      settings.steps, " timed steps");
  const std::string where = absl::StrCat(
      machine.cpu, ", ", machine.cores,
      machine.cores == 1 ? " core, " : " cores, ",
      absl::StrFormat("%.0f GiB, ",
                      static_cast<double>(machine.memory_bytes) / (1 << 30)),
      machine.system, "; ", report.created);
  return absl::StrCat(
      WrapText(what, kTableColumns), WrapText(where, kTableColumns),
      report.commit.empty() ? "" : absl::StrCat("commit ", report.commit, "\n"),
      report.command, "\n");
}

}  // namespace

std::string FormatScalingTable(const ScalingReport& report) {
  std::string text = FormatSettings(report);
  for (const ModeReport& mode : report.modes) {
    absl::StrAppend(&text, "\n", FormatMode(report, mode));
  }
  return absl::StrCat(text, "\n", WrapText(kLegend, kTableColumns));
}

}  // namespace lockstep::benchmarks
