// d2l's split_batch as a sampler.
#ifndef LOCKSTEP_SAMPLER_SPLIT_BATCH_SAMPLER_H_
#define LOCKSTEP_SAMPLER_SPLIT_BATCH_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "sampler/exact_shard.h"
#include "sampler/sampler.h"

namespace lockstep {

struct SplitBatchSamplerOptions {
  int64_t dataset_size = 0;  // Of the batch that is split; in [1, 2^31 - 1].
  int world_size = 1;        // At least 1.
  int rank = 0;              // In [0, world_size).
};

// A sampler whose data set is one batch: draws the places in it that SplitBatch
// gives the rank, the same ones every time. Some ranks may get none.
class SplitBatchSampler : public Sampler {
 public:
  // Errors: kInvalidArgument if an option is out of the range above.
  static absl::StatusOr<SplitBatchSampler> Create(
      const SplitBatchSamplerOptions& options);

  void SetEpoch(int64_t) override {}
  absl::StatusOr<std::vector<int64_t>> Indices() override;

 private:
  explicit SplitBatchSampler(const Shard& shard) : shard_(shard) {}

  Shard shard_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_SPLIT_BATCH_SAMPLER_H_
