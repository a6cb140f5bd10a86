// Which block of a global batch a rank takes: the split of d2l's split_batch.
#ifndef LOCKSTEP_SAMPLER_SPLIT_BATCH_H_
#define LOCKSTEP_SAMPLER_SPLIT_BATCH_H_

#include <algorithm>
#include <cstdint>

#include "sampler/exact_shard.h"

namespace lockstep {

// Rank `rank`'s block of a batch of n samples, as PyTorch's scatter and chunk
// cut it: pieces of ceil(n / world_size) samples in rank order, of which the
// last ones may be smaller, or empty where PyTorch returns fewer pieces.
// 10 samples over 4 ranks are 3, 3, 3, 1; 5 over 4 are 2, 2, 1, 0.
//
// Preconditions: n in [0, 2^62], world_size >= 1, rank in [0, world_size).
// Cost: O(1).
inline Shard SplitBatch(int64_t n, int64_t world_size, int64_t rank) {
  const int64_t piece = n / world_size + (n % world_size != 0 ? 1 : 0);
  const int64_t begin = std::min(n, piece * rank);
  return {begin, std::min(n, begin + piece)};
}

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_SPLIT_BATCH_H_
