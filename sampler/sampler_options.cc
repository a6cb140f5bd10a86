// One line for each option that is wrong; it begins with the option's name.
#include "sampler/sampler_options.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep {

absl::Status CheckDatasetSize(int64_t dataset_size, int64_t most) {
  if (dataset_size >= 1 && dataset_size <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "dataset_size is ", dataset_size, ", must be in [1, ", most, "]"));
}

absl::Status CheckRankInWorld(int rank, int world_size) {
  if (world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size is ", world_size, ", must be at least 1"));
  }
  if (rank < 0 || rank >= world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", rank, ", must be in [0, ", world_size,
                     ") at a world size of ", world_size));
  }
  return absl::OkStatus();
}

absl::Status CheckBatchSize(int64_t batch_size) {
  if (batch_size >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("batch_size is ", batch_size, ", must be at least 1"));
}

}  // namespace lockstep
