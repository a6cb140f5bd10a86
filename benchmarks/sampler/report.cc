#include "benchmarks/sampler/report.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "benchmarks/harness/statistics.h"
#include "benchmarks/sampler/draw.h"
#include "benchmarks/sampler/plan.h"

namespace lockstep::benchmarks {
namespace {

std::optional<double> MedianOf(const MeasuredEpoch& measured,
                               DrawSubject subject) {
  for (const MeasuredDraws& draws : measured.draws) {
    if (draws.subject == subject) return Median(draws.seconds);
  }
  return std::nullopt;
}

std::optional<double> TorchRatio(const SamplerReport& report, int64_t size) {
  for (const DrawRows& rows : report.sizes) {
    if (rows.size != size) continue;
    for (const DrawRow& row : rows.rows) {
      if (row.subject == DrawSubject::kTorch) return row.torch_ratio;
    }
  }
  return std::nullopt;
}

}  // namespace

DrawRows DeriveRows(const MeasuredEpoch& measured) {
  const std::optional<double> table = MedianOf(measured, DrawSubject::kTable);
  const std::optional<double> peer = MedianOf(measured, DrawSubject::kPyTorch);
  DrawRows rows = {.size = measured.size};
  for (const MeasuredDraws& draws : measured.draws) {
    DrawRow row = {
        .subject = draws.subject,
        .count = draws.count,
        .checksum = draws.checksum,
        .median = Median(draws.seconds),
        .min = *std::min_element(draws.seconds.begin(), draws.seconds.end()),
        .max = *std::max_element(draws.seconds.begin(), draws.seconds.end()),
        .seconds = draws.seconds};
    rows.rounds = static_cast<int>(draws.seconds.size());
    if (draws.subject != DrawSubject::kTable) {
      row.indices_per_second = static_cast<double>(draws.count) / row.median;
      if (draws.subject != DrawSubject::kPyTorch) {
        if (table) row.table_ratio = *table / row.median;
        if (peer) row.torch_ratio = *peer / row.median;
      }
    }
    rows.rows.push_back(row);
  }
  return rows;
}

KeyedRow DeriveKeyed(const std::vector<double>& speeds,
                     const std::vector<double>& seconds_per_index,
                     int64_t memory_bytes) {
  return {.size = kKeyedSize,
          .block = kKeyedBlock,
          .median = Median(speeds),
          .min = *std::min_element(speeds.begin(), speeds.end()),
          .max = *std::max_element(speeds.begin(), speeds.end()),
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
