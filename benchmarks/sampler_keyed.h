// The order that is computed in O(1) memory, at a size that no table could
// hold.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_KEYED_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_KEYED_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sampler/epoch_indices.h"

namespace lockstep {

// Indices that are read together.
inline constexpr int64_t kKeyedBlock = 1024;

// The epoch of sampler_plan.h in the order Permutation::kKeyed, as
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

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_KEYED_H_
