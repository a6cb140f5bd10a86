// Computes which samples, positions or list entries belong to a rank. Samplers,
// trainers and evaluations share this index arithmetic.
#ifndef LOCKSTEP_SAMPLER_SHARD_H_
#define LOCKSTEP_SAMPLER_SHARD_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lockstep {

// The samples [begin, end).
struct Shard {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const Shard&, const Shard&) = default;
};

// Returns rank `rank`'s part of n samples. The parts are contiguous and in rank
// order. Their sizes differ by at most one, larger ones first. Every sample is
// in exactly one part, so a metric summed over ranks counts each sample once; a
// padded sampler would count some twice. The part is empty if rank >= n.
//
// Preconditions: n >= 0, world_size >= 1, rank in [0, world_size). Cost: O(1).
inline Shard ExactShard(int64_t n, int64_t world_size, int64_t rank) {
  const int64_t whole = n / world_size;
  const int64_t extra = n % world_size;
  const int64_t begin = whole * rank + std::min(rank, extra);
  return {begin, begin + whole + (rank < extra ? 1 : 0)};
}

// Returns rank `rank`'s block of a batch of n samples, cut as by d2l's
// split_batch and by PyTorch's scatter and chunk: pieces of ceil(n /
// world_size) samples in rank order. The last pieces may be smaller, or empty
// where PyTorch returns fewer pieces. 10 samples over 4 ranks are 3, 3, 3, 1; 5
// over 4 are 2, 2, 1, 0.
//
// Preconditions: n in [0, 2^62], world_size >= 1, rank in [0, world_size).
// Cost: O(1).
inline Shard SplitBatch(int64_t n, int64_t world_size, int64_t rank) {
  const int64_t piece = n / world_size + (n % world_size != 0 ? 1 : 0);
  const int64_t begin = std::min(n, piece * rank);
  return {begin, std::min(n, begin + piece)};
}

// The `length` positions of [begin, begin + length), dealt to the ranks in
// turn. This rank takes the first-th, the (first + stride)-th, ... of them,
// `count` in all. After the last position, dealing starts again from the first
// one: that is padding.
struct StridedPart {
  int64_t begin = 0;
  int64_t length = 0;  // At least 1 if count is.
  int64_t first = 0;
  int64_t stride = 1;
  int64_t count = 0;

  // Precondition: k in [0, count).
  int64_t At(int64_t k) const {
    const int64_t turn = first + k * stride;
    return begin + (turn < length ? turn : turn % length);
  }
};

// The entries [begin, end) of one rank's Indices(). The range may be empty.
using BatchSlice = Shard;

// Cuts an epoch into global batches that do not depend on the number of ranks.
// Batch k is the positions [k*B, min((k+1)*B, total)) of the epoch order. Rank
// r of P visits the positions r, r + P, r + 2P, ... (DistributedSampler's
// stride), so its part of a batch is a contiguous slice of its list. As long as
// the epoch order is the same, training at any world size therefore sees the
// same batches. The order is the same except for padding at the very end. Parts
// differ by at most one sample, and are empty on some ranks if B or the last
// batch is below P: weight by CountInBatch. Immutable.
class GlobalBatches {
 public:
  // total_size: the length of the epoch order over all ranks; any number, not
  // only a multiple of P. Errors: kInvalidArgument if total_size < 0,
  // batch_size < 1, or world_size < 1.
  static absl::StatusOr<GlobalBatches> Create(int64_t total_size,
                                              int64_t batch_size,
                                              int world_size) {
    if (total_size < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("total_size is ", total_size, ", must not be negative"));
    }
    for (const auto& [name, value] :
         {std::pair("batch_size", batch_size),
          std::pair("world_size", int64_t{world_size})}) {
      if (value >= 1) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is ", value, ", must be at least 1"));
    }
    return GlobalBatches(total_size, batch_size, world_size);
  }

  // Returns ceil(total_size / batch_size); the last batch may be partial.
  int64_t num_batches() const { return num_batches_; }

  // Returns the number of samples of all ranks together in a batch; at least 1.
  // Precondition: batch in [0, num_batches()).
  int64_t CountInBatch(int64_t batch) const {
    return std::min(batch_size_, total_size_ - batch * batch_size_);
  }

  // Returns the entries of the rank's list that belong to the batch.
  // Preconditions: rank in [0, world_size), batch in [0, num_batches()).
  BatchSlice SliceOf(int rank, int64_t batch) const {
    const int64_t first = batch * batch_size_;
    return {VisitedBefore(rank, first),
            VisitedBefore(rank, first + CountInBatch(batch))};
  }

 private:
  // A batch size above the epoch's length is reduced to that length, which
  // keeps the products above from overflowing.
  GlobalBatches(int64_t total_size, int64_t batch_size, int world_size)
      : total_size_(total_size),
        batch_size_(std::min(batch_size, std::max<int64_t>(total_size, 1))),
        world_size_(world_size),
        num_batches_(total_size / batch_size_ +
                     (total_size % batch_size_ != 0 ? 1 : 0)) {}

  // Returns how many of the positions below `position` the rank visits.
  int64_t VisitedBefore(int rank, int64_t position) const {
    const int64_t whole = position / world_size_;
    return whole + (position % world_size_ > rank ? 1 : 0);
  }

  int64_t total_size_;
  int64_t batch_size_;
  int64_t world_size_;
  int64_t num_batches_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_SHARD_H_
