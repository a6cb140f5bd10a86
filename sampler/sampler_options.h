// What every sampler asks of its options.
#ifndef LOCKSTEP_SAMPLER_SAMPLER_OPTIONS_H_
#define LOCKSTEP_SAMPLER_SAMPLER_OPTIONS_H_

#include <cstdint>

#include "absl/status/status.h"

namespace lockstep {

// kInvalidArgument unless the size is in [1, most].
absl::Status CheckDatasetSize(int64_t dataset_size, int64_t most);

// kInvalidArgument unless world_size >= 1 and rank is in [0, world_size).
absl::Status CheckRankInWorld(int rank, int world_size);

// kInvalidArgument unless the batch size is at least 1.
absl::Status CheckBatchSize(int64_t batch_size);

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_SAMPLER_OPTIONS_H_
