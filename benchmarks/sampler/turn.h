// The measurements of the command `sampler`: timed draws of an epoch by our
// samplers, by PyTorch's and in the order that needs O(1) memory, and random
// updates of a table.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_TURN_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_TURN_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/sampler/settings.h"
#include "sampler/sampler.h"

namespace lockstep::benchmarks {

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

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_TURN_H_
