// One block of a batch, as indices.
#include "sampler/split_batch_sampler.h"

#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "sampler/exact_shard.h"
#include "sampler/sampler_options.h"
#include "sampler/split_batch.h"

namespace lockstep {

absl::StatusOr<SplitBatchSampler> SplitBatchSampler::Create(
    const SplitBatchSamplerOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckDatasetSize(
      options.dataset_size, std::numeric_limits<int32_t>::max()));
  LOCKSTEP_RETURN_IF_ERROR(CheckRankInWorld(options.rank, options.world_size));
  return SplitBatchSampler(
      SplitBatch(options.dataset_size, options.world_size, options.rank));
}

absl::StatusOr<std::vector<int64_t>> SplitBatchSampler::Indices() {
  std::vector<int64_t> indices(shard_.size());
  std::iota(indices.begin(), indices.end(), shard_.begin);
  return indices;
}

}  // namespace lockstep
