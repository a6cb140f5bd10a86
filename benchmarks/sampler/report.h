// The numbers of the command `sampler`, and the formulas behind them.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_REPORT_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/sampler/measure.h"
#include "benchmarks/sampler/plan.h"
#include "report/machine.h"

namespace lockstep::benchmarks {

// One subject at one size. Seconds of a draw.
struct DrawRow {
  DrawSubject subject = DrawSubject::kTorch;
  int64_t count = 0;  // Indices drawn; 0 for the table.
  uint32_t checksum = 0;
  double median = 0, min = 0, max = 0;
  std::vector<double> seconds = {};               // By round.
  std::optional<double> indices_per_second = {};  // count / median.
  // The table's median over this one's, and PyTorch's. Of our own rows.
  std::optional<double> table_ratio = {};
  std::optional<double> torch_ratio = {};
};

struct DrawRows {
  int64_t size = 0;
  int rounds = 0;
  std::vector<DrawRow> rows = {};
};

// The order in O(1) memory.
struct KeyedRow {
  int64_t size = 0;
  int64_t block = 0;
  // Read in blocks, over rounds of reading.
  double median = 0, min = 0, max = 0;  // Indices per second.
  double seconds_per_index = 0;         // Read one at a time.
  int64_t memory_bytes = 0;             // At most.
};

// What was set as a goal.
struct Bar {
  std::string what;
  double needed = 0;
  bool at_most = false;  // Else at least.
  const char* unit = "";
  std::optional<double> value = {};  // None if it was not measured.

  bool Met() const {
    return value && (at_most ? *value <= needed : *value >= needed);
  }
};

struct SamplerReport {
  SamplerSettings settings;
  Machine machine;
  std::string command;
  std::string commit;   // Empty if unknown.
  std::string created;  // UTC, ISO 8601.
  std::string peer;     // "PyTorch 1.13.0 (python3)"; empty if there is none.
  std::string
      missing;  // Why; empty if it drew at every size, or was not asked.
  std::vector<DrawRows> sizes;
  std::optional<KeyedRow> keyed;
};

// measured: at least one sample of each subject.
DrawRows DeriveRows(const MeasuredEpoch& measured);

// speeds, in indices per second, and seconds_per_index: at least one of each.
KeyedRow DeriveKeyed(const std::vector<double>& speeds,
                     const std::vector<double>& seconds_per_index,
                     int64_t memory_bytes);

std::vector<Bar> BarsOf(const SamplerReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_REPORT_H_
