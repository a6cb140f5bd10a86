// Option checks, and the stride through a padded permutation.
#include "sampler/distributed_sampler.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "sampler/keyed_permutation.h"
#include "sampler/permutation.h"
#include "sampler/sampler.h"
#include "sampler/shard.h"

namespace lockstep {
namespace {

bool UsesTable(const DistributedSamplerOptions& options) {
  return options.shuffle && options.permutation == Permutation::kTorch;
}

absl::Status CheckOptions(const DistributedSamplerOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckDatasetSize(
      options.dataset_size, UsesTable(options)
                                ? std::numeric_limits<int32_t>::max()
                                : int64_t{1} << 62));
  LOCKSTEP_RETURN_IF_ERROR(CheckRankInWorld(options.rank, options.world_size));
  if (options.tail == Tail::kDrop &&
      options.dataset_size < options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "drop_last leaves no sample: dataset_size is ", options.dataset_size,
        ", below the world size of ", options.world_size));
  }
  return absl::OkStatus();
}

// Names the order of samples, which the world size has no part in.
std::string OrderOf(const DistributedSamplerOptions& options) {
  const char* const how = !options.shuffle     ? "in order"
                          : UsesTable(options) ? "shuffled as PyTorch does"
                                               : "shuffled by key";
  return absl::StrCat(
      options.dataset_size, " samples ", how,
      options.shuffle ? absl::StrCat(" from seed ", options.seed) : "");
}

SamplerState StartOf(const DistributedSamplerOptions& options) {
  return {.order = OrderOf(options),
          .first_world_size = options.world_size,
          .world_size = options.world_size};
}

}  // namespace

absl::StatusOr<DistributedSampler> DistributedSampler::Create(
    const DistributedSamplerOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckOptions(options));
  return DistributedSampler(options);
}

DistributedSampler::DistributedSampler(const DistributedSamplerOptions& options)
    : options_(options),
      cursor_(StartOf(options), options.shuffle, options.repeated_draw) {}

StridedPart DistributedSampler::PartOf(int rank) const {
  const SamplerState& place = cursor_.place();
  const int64_t ranks = options_.world_size;
  StridedPart part = {.begin = place.before,
                      .length = options_.dataset_size - place.before,
                      .first = rank + place.visited * ranks,
                      .stride = ranks};
  int64_t own = part.length / ranks;  // Since these ranks took over.
  const int64_t rest = part.length % ranks;
  if (options_.tail == Tail::kPad) own += rest > 0 ? 1 : 0;
  if (options_.tail == Tail::kKeep) own += rank < rest ? 1 : 0;
  part.count = std::max<int64_t>(0, own - place.visited);
  return part;
}

SampleCounts DistributedSampler::Counts() const {
  return {.own = PartOf(options_.rank).count,
          .fewest = PartOf(options_.world_size - 1).count,
          .most = PartOf(0).count};
}

absl::StatusOr<EpochIndices> DistributedSampler::Draw() {
  LOCKSTEP_RETURN_IF_ERROR(cursor_.BeginDraw());
  const StridedPart part = PartOf(options_.rank);
  if (!options_.shuffle) return EpochIndices(part);
  if (!UsesTable(options_)) {
    return EpochIndices(part,
                        KeyedPermutation(options_.dataset_size,
                                         static_cast<uint64_t>(options_.seed),
                                         static_cast<uint64_t>(epoch())));
  }
  // In unsigned arithmetic, where the sum may wrap.
  const uint64_t seed =
      static_cast<uint64_t>(options_.seed) + static_cast<uint64_t>(epoch());
  return EpochIndices(PermutationPart(seed, options_.dataset_size, part));
}

absl::StatusOr<SamplerState> DistributedSampler::StateAfter(
    int64_t visited) const {
  if (visited < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("visited is ", visited, ", must be at least 0"));
  }
  SamplerState state = cursor_.place();
  state.visited += std::min(visited, Counts().most);
  return state;
}

absl::Status DistributedSampler::Restore(const SamplerState& state) {
  SamplerState here = StartOf(options_);
  LOCKSTEP_RETURN_IF_ERROR(CheckState(state, here, options_.dataset_size));
  here.epoch = state.epoch;
  if (state.world_size == options_.world_size) {
    here.before = state.before;
    here.visited = state.visited;
  } else {
    here.before = std::min(options_.dataset_size,
                           state.before + state.visited * state.world_size);
  }
  cursor_.Restore(here);
  return absl::OkStatus();
}

}  // namespace lockstep
