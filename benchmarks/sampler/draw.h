// Timed draws of an epoch by our samplers, and in the order that needs O(1)
// memory.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_DRAW_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_DRAW_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/sampler/plan.h"
#include "sampler/sampler.h"

namespace lockstep::benchmarks {

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

// The order that is computed in O(1) memory, at a size that no table could
// hold.

// Indices that are read together.
inline constexpr int64_t kKeyedBlock = 1024;

// The epoch of plan.h in the order Permutation::kKeyed, as
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

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_DRAW_H_
