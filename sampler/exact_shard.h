// Which part of a data set a rank evaluates.
#ifndef LOCKSTEP_SAMPLER_EXACT_SHARD_H_
#define LOCKSTEP_SAMPLER_EXACT_SHARD_H_

#include <algorithm>
#include <cstdint>

namespace lockstep {

// The samples [begin, end).
struct Shard {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const Shard&, const Shard&) = default;
};

// Rank `rank`'s part of n samples: contiguous, in rank order, sizes that differ
// by at most one, the larger ones first. Over all ranks every sample is there
// exactly once, so a metric summed over ranks counts none twice (a padded
// sampler does) and none is left out. Empty where rank >= n.
//
// Preconditions: n >= 0, world_size >= 1, rank in [0, world_size). Cost: O(1).
inline Shard ExactShard(int64_t n, int64_t world_size, int64_t rank) {
  const int64_t whole = n / world_size;
  const int64_t extra = n % world_size;
  const int64_t begin = whole * rank + std::min(rank, extra);
  return {begin, begin + whole + (rank < extra ? 1 : 0)};
}

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_EXACT_SHARD_H_
