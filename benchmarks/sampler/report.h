// What the command `sampler` is asked to measure. Timed draws of an epoch: by
// our samplers, by PyTorch's, and in the order that needs O(1) memory; what a
// table costs that is accessed at random. In which order draws are made; the
// numbers of the command, and the formulas behind them.
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
#include "benchmarks/harness/measure.h"
#include "benchmarks/harness/torch_process.h"
#include "report/document.h"
#include "sampler/sampler.h"

namespace lockstep::benchmarks {

// Whose epoch is drawn: one line of the table for each data set size.
enum class DrawSubject {
  kTorch,    // DistributedSampler.
  kExact,    // The same without padding: Tail::kKeep.
  kPaddle,   // PaddleSampler.
  kPyTorch,  // The peer: PyTorch's own DistributedSampler.
  kTable,    // Not a draw: what a table takes that is accessed at random.
};

const char* Name(DrawSubject subject);

// Every draw is of this epoch's indices for this rank, shuffled.
inline constexpr int kDrawWorldSize = 8;
inline constexpr int kDrawRank = 3;
inline constexpr int64_t kDrawSeed = 0;
inline constexpr int64_t kDrawEpoch = 1;
inline constexpr int64_t kDrawBatchSize = 32;  // Which Paddle's order needs.

// The size at which the order in O(1) memory is measured.
inline constexpr int64_t kKeyedSize = 1'000'000'000'000;

struct SamplerSettings {
  std::vector<int64_t> sizes = {};  // Samples in the data set, ascending.
  bool torch = true;                // Next to PyTorch, if it is installed.
  std::vector<std::string> pythons =
      {};                // Where to look for it, in this order.
  int rounds = 0;        // Draws of each; 0: as `seconds` allows.
  double seconds = 35;   // For everything, if rounds is 0.
  double timeout = 120;  // Seconds that PyTorch has for a draw.
};

// Reads a comma-separated list of sizes: ascending, each once. Errors:
// kInvalidArgument, beginning with the flag.
absl::StatusOr<std::vector<int64_t>> ParseSizes(absl::string_view text);

// Whether the list of peers, which may be empty, has the one that there is.
// Errors: kInvalidArgument, beginning with the flag.
absl::StatusOr<bool> ParseSamplerPeers(absl::string_view text);

// Errors: kInvalidArgument, beginning with the flag that is wrong.
absl::Status Validate(const SamplerSettings& settings);

// The most memory that a draw takes, ours or PyTorch's, in bytes.
int64_t DrawMemory(int64_t size);
int64_t PyTorchMemory(int64_t size);

struct DrawResult {
  double seconds = 0;
  int64_t count = 0;      // Indices drawn.
  uint32_t checksum = 0;  // IndexChecksum of them.
};

// Draws the epoch once with our sampler of that kind: SetEpoch and Indices are
// timed, so from nothing to a list of int64 in memory. Checks the indices
// outside that time (CheckIndices). Errors: kDataLoss if they are wrong.
// Precondition: subject is kTorch, kExact or kPaddle.
absl::StatusOr<DrawResult> DrawEpoch(DrawSubject subject, int64_t size);

// The CRC-32 of the indices as they lie in memory: other indices, or the same
// in another order, have another one, but for one chance in 2^32.
uint32_t IndexChecksum(std::span<const int64_t> indices);

struct IndexCounts {
  int64_t drawn = 0;
  int64_t most_repeated = 0;  // Of them: those that came before.
};

// What the draw of this rank has. PyTorch's padding deals no sample twice to
// one rank; Paddle's is shuffled with the samples, and may.
// Precondition: as DrawEpoch's.
IndexCounts DrawnCounts(DrawSubject subject, int64_t size);

// Every index is in [0, size), and there are as many, with no more of
// them repeated, as `counts` says. Errors: kDataLoss. Cost: a bit of memory a
// sample.
absl::Status CheckIndices(std::span<const int64_t> indices, int64_t size,
                          const IndexCounts& counts);

// Seconds that `size` updates (read, change, write) at random places of a table
// of as many int32 take. No update waits for another, and a place costs next to
// nothing to draw, so it is all the memory's time: what any algorithm takes at
// least that goes once to a random place of such a table for each element.
// Allocating and clearing the table is not timed. Errors: kResourceExhausted
// without memory; kDataLoss if an update was lost. size: at least 1, at most
// 2^32.
absl::StatusOr<double> TimeRandomUpdates(int64_t size);

// The same epoch as DrawEpoch does, drawn with PyTorch's DistributedSampler by
// a Python that runs SamplerPeerTorch() (torch_peer.py), on one thread, within
// settings.timeout; what is timed is the iteration over the sampler, to an
// array of int64.
// Errors: kUnavailable and kDeadlineExceeded if the process ended or said
// nothing; kInternal if it said something else; kFailedPrecondition if this
// PyTorch draws another order at that size, or if there is not the memory for
// it.
absl::StatusOr<DrawResult> DrawWithPeer(TorchProcess& peer, int64_t size,
                                        const SamplerSettings& settings);

// Whether a PyTorch of that version, such as "2.6.0+cu124", draws what ours
// does at every size (see kWideDrawSize).
bool DrawsWide(const std::string& version);

// The answer of torch_peer.py to a draw. Errors: kInternal.
absl::StatusOr<DrawResult> ParseDrawAnswer(const std::string& answer);

// The order that is computed in O(1) memory, at a size that no table could
// hold.

// Indices that are read together.
inline constexpr int64_t kKeyedBlock = 1024;

// The same epoch in the order Permutation::kKeyed, as
// DistributedSampler's Draw gives it. size: at least 1.
absl::StatusOr<EpochIndices> DrawKeyed(int64_t size);

// Reads blocks of kKeyedBlock (or all there are), one after the other and round
// and round, for at least `seconds`; returns the indices read a second. The
// last block is then read again, an index at a time. Errors: kDataLoss if that
// differs.
absl::StatusOr<double> TimeKeyedBlocks(const EpochIndices& indices,
                                       double seconds);

// Seconds that one index takes, read alone.
double TimeKeyedIndex(const EpochIndices& indices);

// Reads the first million in blocks: all are in [0, size), and no two of them
// are equal, nor of the last block. Errors: kDataLoss.
absl::Status CheckKeyed(const EpochIndices& indices, int64_t size);

// Draws the epoch and reads blocks of it for a moment. Errors: as above.
absl::Status DrawAndReadKeyed(int64_t size);

// The bytes of memory that DrawAndReadKeyed takes, more than it takes for 1000
// samples (ResidentGrowth): what it takes at every size is not seen.
absl::StatusOr<int64_t> KeyedMemory(int64_t size);

// What one subject at one size draws, and its numbers.
struct DrawRow {
  DrawSubject subject = DrawSubject::kTorch;
  std::vector<double> seconds = {};  // Of a draw, one in each round.
  int64_t count = 0;                 // Indices drawn; 0 for the table.
  uint32_t checksum = 0;
  // By DeriveRows.
  double median = 0, min = 0, max = 0;            // Of the seconds.
  std::optional<double> indices_per_second = {};  // count / median.
  // The table's median over this one's, and PyTorch's. Of our own rows.
  std::optional<double> table_ratio = {};
  std::optional<double> torch_ratio = {};
};

struct DrawRows {
  int64_t size = 0;
  int rounds = 0;  // By DeriveRows.
  std::vector<DrawRow> rows = {};
};

using DrawFunction = std::function<absl::StatusOr<DrawResult>(
    DrawSubject subject, int64_t size)>;

// Draws an epoch of `size` samples with each subject in rounds
// (harness/measure.h): settings.rounds, or 2 to 15 within settings.seconds of
// the start of the command, which is where `elapsed` begins.
//
// If PyTorch cannot draw, it is taken out of `subjects`, and `missing` says at
// which size and why. Errors: those of other subjects, beginning with the name;
// kDataLoss if PyTorch's indices are not kTorch's, or if a subject draws others
// than in the round before.
absl::StatusOr<DrawRows> MeasureEpoch(const SamplerSettings& settings,
                                      int64_t size, const DrawFunction& draw,
                                      const ClockFunction& elapsed,
                                      std::vector<DrawSubject>& subjects,
                                      std::string& missing);

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
  std::string peer = {};  // "PyTorch 1.13.0 (python3)"; empty if there is none.
  std::string missing =
      {};  // Why; empty if it drew at every size, or was not asked.
  std::vector<DrawRows> sizes = {};
  std::optional<KeyedRow> keyed = {};
};

// measured: at least one sample of each subject.
DrawRows DeriveRows(DrawRows measured);

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
