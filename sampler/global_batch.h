// Which samples of a rank belong to which global batch.
#ifndef LOCKSTEP_SAMPLER_GLOBAL_BATCH_H_
#define LOCKSTEP_SAMPLER_GLOBAL_BATCH_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace lockstep {

// The entries [begin, end) of one rank's Indices(); may be empty.
struct BatchSlice {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const BatchSlice&, const BatchSlice&) = default;
};

// Cuts an epoch into global batches that do not depend on the number of ranks:
// batch k is the positions [k*B, min((k+1)*B, total)) of the epoch order,
// whoever visits them. Rank r of P visits the positions r, r + P, r + 2P, ...
// (DistributedSampler's stride), so its part of a batch is a contiguous slice
// of its list. Hence, as long as the epoch order is the same, which it is
// except for padding at the very end, training at any world size sees the same
// batches. Parts differ by at most one sample, and are empty on some ranks if B
// or the last batch is below P: weight by CountInBatch. Immutable.
class GlobalBatches {
 public:
  // total_size: the length of the epoch order over all ranks; any number, also
  // not a multiple of P.
  // Errors: kInvalidArgument if total_size < 0, batch_size < 1, or
  // world_size < 1.
  static absl::StatusOr<GlobalBatches> Create(int64_t total_size,
                                              int64_t batch_size,
                                              int world_size);

  // ceil(total_size / batch_size); the last batch may be partial.
  int64_t num_batches() const { return num_batches_; }

  // The number of samples of all ranks together in a batch; at least 1.
  // Precondition: batch in [0, num_batches()).
  int64_t CountInBatch(int64_t batch) const;

  // The entries of the rank's list that belong to the batch. Preconditions:
  // rank in [0, world_size), batch in [0, num_batches()).
  BatchSlice SliceOf(int rank, int64_t batch) const;

 private:
  GlobalBatches(int64_t total_size, int64_t batch_size, int world_size);

  // How many of the positions below `position` the rank visits.
  int64_t VisitedBefore(int rank, int64_t position) const;

  int64_t total_size_;
  int64_t batch_size_;
  int64_t world_size_;
  int64_t num_batches_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_GLOBAL_BATCH_H_
