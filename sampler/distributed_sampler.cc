// Option checks, and the stride through a padded permutation.
#include "sampler/distributed_sampler.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "sampler/permutation.h"

namespace lockstep {
namespace {

absl::Status CheckOptions(const DistributedSamplerOptions& options) {
  constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();
  if (options.dataset_size < 1 || options.dataset_size > kMaxSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("dataset_size is ", options.dataset_size,
                     ", must be in [1, ", kMaxSize, "]"));
  }
  if (options.world_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "world_size is ", options.world_size, ", must be at least 1"));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank is ", options.rank, ", must be in [0, ", options.world_size,
        ") at a world size of ", options.world_size));
  }
  if (options.drop_last && options.dataset_size < options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "drop_last leaves no sample: dataset_size is ", options.dataset_size,
        ", below the world size of ", options.world_size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DistributedSampler> DistributedSampler::Create(
    const DistributedSamplerOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckOptions(options));
  const int64_t whole = options.dataset_size / options.world_size;
  const bool uneven = options.dataset_size % options.world_size != 0;
  return DistributedSampler(options,
                            whole + (uneven && !options.drop_last ? 1 : 0));
}

std::vector<int64_t> DistributedSampler::Indices() const {
  std::unique_ptr<int32_t[]> permutation;
  if (options_.shuffle) {
    permutation =
        std::make_unique_for_overwrite<int32_t[]>(options_.dataset_size);
    // In unsigned arithmetic, where the sum may wrap.
    RandomPermutation(
        static_cast<uint64_t>(options_.seed) + static_cast<uint64_t>(epoch_),
        std::span(permutation.get(), options_.dataset_size));
  }
  std::vector<int64_t> indices(num_samples_);
  int64_t position = options_.rank;
  for (int64_t& index : indices) {
    // Positions beyond the data set are padding: its start again, and again if
    // there are more ranks than samples.
    index = position < options_.dataset_size ? position
                                             : position % options_.dataset_size;
    if (permutation != nullptr) index = permutation[index];
    position += options_.world_size;
  }
  return indices;
}

}  // namespace lockstep
