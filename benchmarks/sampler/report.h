// The settings of the command `sampler`, and its measurements: timed draws of
// an epoch by our samplers, by PyTorch's and in the order that needs O(1)
// memory, and random updates of a table. Also the order of draws, the numbers
// that the command reports, and the formulas of these numbers.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_REPORT_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_REPORT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "benchmarks/harness/rounds.h"
#include "benchmarks/harness/torch_process.h"
#include "report/document.h"
#include "sampler/sampler.h"

namespace lockstep::benchmarks {

// The sampler that draws an epoch. Each has one line of the table for each data
// set size.
enum class DrawSubject {
  kTorch,    // DistributedSampler.
  kExact,    // The same without padding: Tail::kKeep.
  kPaddle,   // PaddleSampler.
  kPyTorch,  // The peer: PyTorch's own DistributedSampler.
  kTable,    // Not a sampler: random updates of a table (TimeRandomUpdates).
};

const char* Name(DrawSubject subject);

// The epoch and rank of every draw. Indices are shuffled.
inline constexpr int kDrawWorldSize = 8;
inline constexpr int kDrawRank = 3;
inline constexpr int64_t kDrawSeed = 0;
inline constexpr int64_t kDrawEpoch = 1;
inline constexpr int64_t kDrawBatchSize = 32;  // Paddle's order depends on it.

// The size at which the order in O(1) memory is measured.
inline constexpr int64_t kKeyedSize = 1'000'000'000'000;

struct SamplerSettings {
  std::vector<int64_t> sizes = {};  // Samples in the data set, ascending.
  bool torch = true;  // Whether PyTorch is measured, if it is installed.
  std::vector<std::string> pythons =
      {};                // The Pythons to try for PyTorch, in this order.
  int rounds = 0;        // Draws of each subject; 0: as `seconds` allows.
  double seconds = 35;   // For all draws together, if rounds is 0.
  double timeout = 120;  // The seconds that PyTorch has for a draw.
};

// Reads a comma-separated list of sizes: ascending, each once. Errors:
// kInvalidArgument, beginning with the flag.
absl::StatusOr<std::vector<int64_t>> ParseSizes(absl::string_view text);

// Returns whether the list of peers, which may be empty, has the only peer,
// torch. Errors: kInvalidArgument, beginning with the flag.
absl::StatusOr<bool> ParseSamplerPeers(absl::string_view text);

// Checks the settings. Errors: kInvalidArgument, beginning with the flag that
// is wrong.
absl::Status Validate(const SamplerSettings& settings);

// Return an upper limit of the bytes of memory that a draw takes, with our
// samplers or with PyTorch's.
int64_t DrawMemory(int64_t size);
int64_t PyTorchMemory(int64_t size);

struct DrawResult {
  double seconds = 0;
  int64_t count = 0;      // The number of indices drawn.
  uint32_t checksum = 0;  // The IndexChecksum of the indices.
};

// Draws the epoch once with our sampler of that kind. The time covers SetEpoch
// and Indices, which ends with a list of int64 in memory. Checks the indices
// outside that time (CheckIndices). Errors: kDataLoss if they are wrong.
// Precondition: subject is kTorch, kExact or kPaddle.
absl::StatusOr<DrawResult> DrawEpoch(DrawSubject subject, int64_t size);

// Returns the CRC-32 of the indices' bytes in memory. Different indices, or the
// same indices in another order, have the same CRC-32 with probability 2^-32.
uint32_t IndexChecksum(std::span<const int64_t> indices);

struct IndexCounts {
  int64_t drawn = 0;
  int64_t max_repeated = 0;  // The limit of indices that repeat earlier ones.
};

// Returns the counts of this rank's draw. PyTorch's padding gives no sample
// twice to one rank. Paddle's padding is shuffled with the samples, and may do
// so. Precondition: as DrawEpoch's.
IndexCounts DrawnCounts(DrawSubject subject, int64_t size);

// Checks that every index is in [0, size), that there are counts.drawn indices,
// and that at most counts.max_repeated are repeated. Errors: kDataLoss. Cost:
// one bit of memory per sample.
absl::Status CheckIndices(std::span<const int64_t> indices, int64_t size,
                          const IndexCounts& counts);

// Returns the seconds that `size` updates (read, change, write) take at random
// places of a table of `size` int32. No update waits for another, and drawing a
// place costs almost nothing, so memory takes all the time. Any algorithm that
// accesses a random place of such a table for each element takes at least as
// long. Allocating and clearing the table is not timed. Errors:
// kResourceExhausted without memory; kDataLoss if an update was lost. size: at
// least 1, at most 2^32.
absl::StatusOr<double> TimeRandomUpdates(int64_t size);

// Draws the epoch of DrawEpoch with PyTorch's DistributedSampler. A Python
// process that runs SamplerPeerTorch() (torch_peer.py) draws it on one thread,
// within settings.timeout. The time covers the iteration over the sampler into
// an array of int64.
// Errors: kUnavailable if the process ended; kDeadlineExceeded if it did not
// answer; kInternal for an answer that is not understood; kFailedPrecondition
// if this PyTorch draws another order at that size, or if memory is too small.
absl::StatusOr<DrawResult> DrawWithPeer(TorchProcess& peer, int64_t size,
                                        const SamplerSettings& settings);

// Returns whether PyTorch of that version, such as "2.6.0+cu124", draws the
// same indices as our sampler at every size (see kWideDrawSize).
bool MatchesAtEverySize(const std::string& version);

// Parses the answer of torch_peer.py to a draw. Errors: kInternal.
absl::StatusOr<DrawResult> ParseDrawAnswer(const std::string& answer);

// The order that is computed in O(1) memory, at a size for which a table would
// not fit in memory.

// The number of indices that are read together.
inline constexpr int64_t kKeyedBlock = 1024;

// Returns the same epoch in the order Permutation::kKeyed, drawn by
// DistributedSampler::Draw. size: at least 1.
absl::StatusOr<EpochIndices> DrawKeyed(int64_t size);

// Reads consecutive blocks of kKeyedBlock indices (or all, if there are fewer)
// for at least `seconds`, and begins again at the end. Returns the indices read
// per second. Then reads the last block again, one index at a time. Errors:
// kDataLoss if an index differs.
absl::StatusOr<double> TimeKeyedBlocks(const EpochIndices& indices,
                                       double seconds);

// Returns the seconds that one index takes when it is read alone.
double TimeKeyedIndex(const EpochIndices& indices);

// Reads the first million indices in blocks, and the last block. Checks that
// all are in [0, size) and that none is repeated. Errors: kDataLoss.
absl::Status CheckKeyed(const EpochIndices& indices, int64_t size);

// Draws the epoch and reads blocks of it for 0.05 s. Errors: as above.
absl::Status DrawAndReadKeyed(int64_t size);

// Returns the bytes of memory that DrawAndReadKeyed takes beyond its memory for
// 1000 samples (ResidentGrowth). Memory that every size takes is not counted.
absl::StatusOr<int64_t> KeyedMemory(int64_t size);

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

// Returns the report's document. README.md lists the keys of its JSON.
// `finished`: whether all is measured. Until then, the document ends with the
// table.
report::Document SamplerDocument(const SamplerReport& report,
                                 bool finished = true);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_REPORT_H_
