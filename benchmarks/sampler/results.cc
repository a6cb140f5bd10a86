#include "benchmarks/sampler/results.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/sampler/settings.h"
#include "benchmarks/sampler/turn.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// The order of draws.
namespace {

absl::Status AddDraw(const DrawResult& result, DrawRow& draws) {
  if (!draws.seconds.empty() &&
      (result.count != draws.count || result.checksum != draws.checksum)) {
    return absl::DataLossError(
        absl::StrCat(Name(draws.subject),
                     ": the same epoch, drawn again, has other indices"));
  }
  draws.seconds.push_back(result.seconds);
  draws.count = result.count;
  draws.checksum = result.checksum;
  return absl::OkStatus();
}

absl::Status CompareWithPyTorch(const DrawRows& measured) {
  const DrawRow* const ours = FindRow(measured, DrawSubject::kTorch);
  const DrawRow* const theirs = FindRow(measured, DrawSubject::kPyTorch);
  if (ours == nullptr || theirs == nullptr ||
      (ours->count == theirs->count && ours->checksum == theirs->checksum)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("torch: of ", measured.size, " samples it draws ",
                   ours->count, " indices with CRC-32 ", ours->checksum,
                   ", PyTorch ", theirs->count, " with ", theirs->checksum));
}

}  // namespace

const DrawRow* FindRow(const DrawRows& measured, DrawSubject subject) {
  for (const DrawRow& row : measured.rows) {
    if (row.subject == subject && !row.seconds.empty()) return &row;
  }
  return nullptr;
}

absl::StatusOr<DrawRows> MeasureEpoch(const SamplerSettings& settings,
                                      int64_t size, const DrawFunction& draw,
                                      const ClockFunction& elapsed,
                                      std::vector<DrawSubject>& subjects,
                                      std::string& missing) {
  DrawRows measured = {.size = size};
  for (const DrawSubject subject : subjects) {
    measured.rows.push_back({.subject = subject});
  }
  const auto is_gone = [&](const DrawRow& row) {
    return std::ranges::count(subjects, row.subject) == 0;
  };
  const auto take_turn = [&](int, size_t next) -> absl::Status {
    DrawRow& row = measured.rows[next];
    if (is_gone(row)) return absl::OkStatus();
    const absl::StatusOr<DrawResult> result = draw(row.subject, size);
    if (result.ok()) {
      LOCKSTEP_RETURN_IF_ERROR(AddDraw(*result, row));
      return CompareWithPyTorch(measured);
    }
    if (row.subject != DrawSubject::kPyTorch) {
      return Named(Name(row.subject), result.status());
    }
    missing = absl::StrCat(
        "at ", size, " samples: ", std::string(result.status().message()));
    std::erase(subjects, row.subject);
    return absl::OkStatus();
  };
  const RoundLimits limits = {.rounds = settings.rounds,
                              .fewest = 2,
                              .most = 15,
                              .seconds = settings.seconds - elapsed()};
  LOCKSTEP_RETURN_IF_ERROR(
      MeasureRounds(limits, subjects.size(), elapsed, take_turn).status());
  std::erase_if(measured.rows, is_gone);
  return measured;
}

// Numbers from samples.
namespace {

std::optional<double> MedianOf(const DrawRows& measured, DrawSubject subject) {
  const DrawRow* const row = FindRow(measured, subject);
  return row == nullptr ? std::nullopt : std::optional(Median(row->seconds));
}

std::optional<double> TorchRatio(const SamplerReport& report, int64_t size) {
  for (const DrawRows& rows : report.sizes) {
    const DrawRow* const row = FindRow(rows, DrawSubject::kTorch);
    if (rows.size == size && row != nullptr) return row->torch_ratio;
  }
  return std::nullopt;
}

}  // namespace

DrawRows DeriveRows(DrawRows measured) {
  const std::optional<double> table = MedianOf(measured, DrawSubject::kTable);
  const std::optional<double> peer = MedianOf(measured, DrawSubject::kPyTorch);
  for (DrawRow& row : measured.rows) {
    row.median = Median(row.seconds);
    row.min = std::ranges::min(row.seconds);
    row.max = std::ranges::max(row.seconds);
    measured.rounds = static_cast<int>(row.seconds.size());
    if (row.subject == DrawSubject::kTable) continue;
    row.indices_per_second = static_cast<double>(row.count) / row.median;
    if (row.subject == DrawSubject::kPyTorch) continue;
    if (table) row.table_ratio = *table / row.median;
    if (peer) row.torch_ratio = *peer / row.median;
  }
  return measured;
}

KeyedRow DeriveKeyed(const std::vector<double>& speeds,
                     const std::vector<double>& seconds_per_index,
                     int64_t memory_bytes) {
  return {.size = kKeyedSize,
          .block = kKeyedBlock,
          .median = Median(speeds),
          .min = std::ranges::min(speeds),
          .max = std::ranges::max(speeds),
          .seconds_per_index = Median(seconds_per_index),
          .memory_bytes = memory_bytes};
}

std::vector<report::Bar> BarsOf(const SamplerReport& report) {
  std::vector<report::Bar> bars = {
      {.what = "torch at n = 1,281,167 over PyTorch",
       .needed = 20,
       .unit = "times as fast",
       .value = TorchRatio(report, 1'281'167)},
      {.what = "torch at n = 100,000,000 over PyTorch",
       .needed = 10,
       .unit = "times as fast",
       .value = TorchRatio(report, 100'000'000)},
      {.what = "keyed at n = 10^12",
       .needed = 50,
       .unit = "million indices a second"},
      {.what = "keyed at n = 10^12",
       .needed = 1,
       .at_most = true,
       .unit = "MiB of memory"}};
  if (report.keyed) {
    bars[2].value = report.keyed->median / 1e6;
    bars[3].value = static_cast<double>(report.keyed->memory_bytes) / (1 << 20);
  }
  return bars;
}

}  // namespace lockstep::benchmarks
