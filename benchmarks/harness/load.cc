#include "benchmarks/harness/load.h"

#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/process.h"
#include "benchmarks/harness/rounds.h"
#include "report/document.h"

namespace lockstep::benchmarks {
namespace {

// The columns of a CPU's line after its name.
constexpr size_t kUser = 0, kNice = 1, kSystem = 2, kSteal = 7, kColumns = 8;

// Returns nullopt for a line that is not a CPU's or lacks a column.
std::optional<CpuTicks> ParseLine(std::span<const absl::string_view> columns) {
  if (columns.size() < kColumns) return std::nullopt;
  CpuTicks ticks;
  for (size_t i = 0; i < kColumns; ++i) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(columns[i], &value)) return std::nullopt;
    ticks.total += value;
    if (i == kUser || i == kNice || i == kSystem || i == kSteal) {
      ticks.busy += value;
    }
  }
  return ticks;
}

std::optional<CpuTicks> ReadCpuTicks(std::span<const int> cpus) {
  return ParseCpuTicks(ReadFile("/proc/stat").value_or(""), cpus);
}

}  // namespace

std::optional<CpuTicks> ParseCpuTicks(absl::string_view text,
                                      std::span<const int> cpus) {
  CpuTicks all;
  size_t found = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> fields =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    int cpu = 0;
    if (fields.empty() || fields[0].substr(0, 3) != "cpu" ||
        !absl::SimpleAtoi(fields[0].substr(3), &cpu) ||
        std::find(cpus.begin(), cpus.end(), cpu) == cpus.end()) {
      continue;
    }
    const auto ticks = ParseLine(std::span(fields).subspan(1));
    if (!ticks.has_value()) return std::nullopt;
    all.total += ticks->total;
    all.busy += ticks->busy;
    ++found;
  }
  if (found != cpus.size() || cpus.empty()) return std::nullopt;
  return all;
}

LoadMeter::LoadMeter(std::vector<pid_t> roots)
    : roots_(std::move(roots)),
      cpus_(AffinityCpus()),
      start_(SteadySeconds()),
      cpu_ticks_(ReadCpuTicks(cpus_)),
      own_ticks_(CpuTicksOfTrees(roots_)) {}

std::optional<double> LoadMeter::OthersShare() const {
  const int64_t own = CpuTicksOfTrees(roots_) - own_ticks_;
  const std::optional<CpuTicks> now = ReadCpuTicks(cpus_);
  if (!now.has_value() || !cpu_ticks_.has_value() ||
      SteadySeconds() - start_ < kShortestLoad ||
      now->total <= cpu_ticks_->total) {
    return std::nullopt;
  }
  const auto others = static_cast<double>(now->busy - cpu_ticks_->busy - own);
  return std::clamp(
      others / static_cast<double>(now->total - cpu_ticks_->total), 0.0, 1.0);
}

void AddLoad(std::optional<double> others_share, report::Document& document) {
  document.origin.others_share = others_share;
  if (others_share.value_or(0) < kBusyShare) return;
  document.remarks.push_back(
      absl::StrCat("The machine was not quiet: other programs took ",
                   report::Percent(*others_share),
                   " of the cores' time. The figures include their effect",
                   document.bars.empty() ? "." : ", and no bar is judged."));
  for (report::Bar& bar : document.bars) bar.judged = false;
}

}  // namespace lockstep::benchmarks
