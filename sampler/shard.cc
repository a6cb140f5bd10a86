#include "sampler/shard.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lockstep {

absl::StatusOr<GlobalBatches> GlobalBatches::Create(int64_t total_size,
                                                    int64_t batch_size,
                                                    int world_size) {
  if (total_size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("total_size is ", total_size, ", must not be negative"));
  }
  if (batch_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch_size is ", batch_size, ", must be at least 1"));
  }
  if (world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size is ", world_size, ", must be at least 1"));
  }
  return GlobalBatches(total_size, batch_size, world_size);
}

// A batch larger than the epoch is the epoch: bounding it keeps the products
// below from overflowing.
GlobalBatches::GlobalBatches(int64_t total_size, int64_t batch_size,
                             int world_size)
    : total_size_(total_size),
      batch_size_(std::min(batch_size, std::max<int64_t>(total_size, 1))),
      world_size_(world_size),
      num_batches_(total_size / batch_size_ +
                   (total_size % batch_size_ != 0 ? 1 : 0)) {}

int64_t GlobalBatches::CountInBatch(int64_t batch) const {
  return std::min(batch_size_, total_size_ - batch * batch_size_);
}

BatchSlice GlobalBatches::SliceOf(int rank, int64_t batch) const {
  const int64_t first = batch * batch_size_;
  return {VisitedBefore(rank, first),
          VisitedBefore(rank, first + CountInBatch(batch))};
}

int64_t GlobalBatches::VisitedBefore(int rank, int64_t position) const {
  const int64_t whole = position / world_size_;
  return whole + (position % world_size_ > rank ? 1 : 0);
}

}  // namespace lockstep
