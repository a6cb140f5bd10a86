// What draws give, and in which order they are made; the numbers of the command
// `sampler`, and the formulas behind them.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_REPORT_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_REPORT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/sampler/draw.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// What the draws of one subject at one size gave.
struct MeasuredDraws {
  DrawSubject subject = DrawSubject::kTorch;
  std::vector<double> seconds = {};  // One of each round.
  int64_t count = 0;
  uint32_t checksum = 0;
};

struct MeasuredEpoch {
  int64_t size = 0;
  std::vector<MeasuredDraws> draws = {};
};

using DrawFunction = std::function<absl::StatusOr<DrawResult>(
    DrawSubject subject, int64_t size)>;

// Draws an epoch of `size` samples with each subject in rounds
// (harness/rounds.h): settings.rounds, or 2 to 15 within settings.seconds of
// the start of the command, which is where `elapsed` begins.
//
// If PyTorch cannot draw, it is taken out of `subjects`, and `missing` says at
// which size and why. Errors: those of other subjects, beginning with the name;
// kDataLoss if PyTorch's indices are not kTorch's, or if a subject draws others
// than in the round before.
absl::StatusOr<MeasuredEpoch> MeasureEpoch(const SamplerSettings& settings,
                                           int64_t size,
                                           const DrawFunction& draw,
                                           const ClockFunction& elapsed,
                                           std::vector<DrawSubject>& subjects,
                                           std::string& missing);

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

struct SamplerReport {
  SamplerSettings settings;
  report::Origin origin;
  std::string peer;  // "PyTorch 1.13.0 (python3)"; empty if there is none.
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

// Those of the project's goals; without a value for a size that was not
// measured.
std::vector<report::Bar> BarsOf(const SamplerReport& report);

// README.md lists the keys of its JSON. `finished`: whether
// everything is measured; what stands below the table is left out before.
report::Document SamplerDocument(const SamplerReport& report,
                                 bool finished = true);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_REPORT_H_
