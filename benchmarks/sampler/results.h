// The order of draws, the numbers that the command `sampler` reports, and the
// formulas of these numbers.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_RESULTS_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_RESULTS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/sampler/settings.h"
#include "benchmarks/sampler/turn.h"
#include "report/document.h"

namespace lockstep::benchmarks {

// The draws of one subject at one size, and their numbers.
struct DrawRow {
  DrawSubject subject = DrawSubject::kTorch;
  std::vector<double> seconds = {};  // The time of the draw in each round.
  int64_t count = 0;                 // Indices drawn; 0 for the table.
  uint32_t checksum = 0;
  // The fields below are set by DeriveRows.
  double median = 0, min = 0, max = 0;            // Of the seconds.
  std::optional<double> indices_per_second = {};  // count / median.
  // The table's and PyTorch's median divided by this row's. Set for our own
  // samplers only.
  std::optional<double> table_ratio = {};
  std::optional<double> torch_ratio = {};
};

struct DrawRows {
  int64_t size = 0;
  int rounds = 0;  // Set by DeriveRows.
  std::vector<DrawRow> rows = {};
};

// Returns the subject's row, or null if the subject was not drawn.
const DrawRow* FindRow(const DrawRows& measured, DrawSubject subject);

using DrawFunction = std::function<absl::StatusOr<DrawResult>(
    DrawSubject subject, int64_t size)>;

// Draws an epoch of `size` samples with each subject in rounds
// (harness/rounds.h): settings.rounds, or 2 to 15 within settings.seconds of
// the start of the command, which is where `elapsed` begins.
//
// If PyTorch fails to draw, it is removed from `subjects`, and `missing` says
// at which size and why. Errors: those of other subjects, beginning with the
// name; kDataLoss if PyTorch's indices are not kTorch's, or if a subject's
// indices differ from those of the previous round.
absl::StatusOr<DrawRows> MeasureEpoch(const SamplerSettings& settings,
                                      int64_t size, const DrawFunction& draw,
                                      const ClockFunction& elapsed,
                                      std::vector<DrawSubject>& subjects,
                                      std::string& missing);

// The numbers of the order in O(1) memory.
struct KeyedRow {
  int64_t size = 0;
  int64_t block = 0;
  // The speed of reading blocks, over all rounds.
  double median = 0, min = 0, max = 0;  // Indices per second.
  double seconds_per_index = 0;         // For indices read one at a time.
  int64_t memory_bytes = 0;             // From KeyedMemory.
};

struct SamplerReport {
  SamplerSettings settings;
  report::Origin origin;
  std::string peer = {};  // "PyTorch 1.13.0 (python3)"; empty if there is none.
  // Why PyTorch did not draw at every size. Empty if it did, or was not
  // requested.
  std::string missing = {};
  std::vector<DrawRows> sizes = {};
  std::optional<KeyedRow> keyed = {};
};

// Returns `measured` with the derived fields set. measured: at least one sample
// of each subject.
DrawRows DeriveRows(DrawRows measured);

// Returns the row of these numbers. speeds, in indices per second, and
// seconds_per_index: at least one of each.
KeyedRow DeriveKeyed(const std::vector<double>& speeds,
                     const std::vector<double>& seconds_per_index,
                     int64_t memory_bytes);

// Returns the bars of the project's goals. A bar has no value if its size was
// not measured.
std::vector<report::Bar> BarsOf(const SamplerReport& report);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_RESULTS_H_
