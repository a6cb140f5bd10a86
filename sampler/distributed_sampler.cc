#include "sampler/distributed_sampler.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "sampler/keyed_permutation.h"
#include "sampler/permutation.h"
#include "sampler/permutation_part.h"
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

// Returns the name of the order of samples. The order does not depend on the
// world size.
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
    : EpochSampler(StartOf(options), options.shuffle, options.repeated_draw),
      options_(options) {}

StridedPart DistributedSampler::PartOf(int rank) const {
  const SamplerState& place = this->place();
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
  LOCKSTEP_RETURN_IF_ERROR(BeginDraw());
  const StridedPart part = PartOf(options_.rank);
  if (!options_.shuffle) return EpochIndices(part);
  if (!UsesTable(options_)) {
    return EpochIndices(part,
                        KeyedPermutation(options_.dataset_size,
                                         static_cast<uint64_t>(options_.seed),
                                         static_cast<uint64_t>(epoch())));
  }
  // Adds as unsigned integers, because the sum may wrap.
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
  SamplerState state = place();
  state.visited += std::min(visited, Counts().most);
  return state;
}

absl::Status DistributedSampler::Restore(const SamplerState& state) {
  SamplerState here = start();
  LOCKSTEP_RETURN_IF_ERROR(CheckState(state, here, options_.dataset_size));
  here.epoch = state.epoch;
  if (state.world_size == options_.world_size) {
    here.before = state.before;
    here.visited = state.visited;
  } else {
    here.before = std::min(options_.dataset_size,
                           state.before + state.visited * state.world_size);
  }
  SetPlace(here);
  return absl::OkStatus();
}

// The Paddle sampler: padding, shuffling, and dealing by the batch.

namespace {

int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Returns the most samples for which the padded size is below 2^31, too.
int64_t MaxSamples(int64_t ranks) {
  return std::numeric_limits<int32_t>::max() - ranks + 1;
}

SamplerState StartOf(const PaddleSamplerOptions& options) {
  return {.order = absl::StrCat(
              options.dataset_size, " samples ",
              options.shuffle ? "shuffled as Paddle does" : "in order"),
          .first_world_size = options.world_size,
          .world_size = options.world_size,
          .batch_size = options.batch_size};
}

absl::Status CheckEpoch(const PaddleSamplerOptions& options, int64_t epoch) {
  constexpr int64_t kMaxSeed = std::numeric_limits<uint32_t>::max();
  if (!options.shuffle || (epoch >= 0 && epoch <= kMaxSeed)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("epoch is ", epoch, ", must be in [0, ", kMaxSeed,
                   "]: the epoch is numpy's seed"));
}

// Checks that `visited` is between two batches or after all samples of a rank.
// At these places all ranks can stop.
absl::Status CheckBetweenBatches(int64_t visited, int64_t all,
                                 int64_t batch_size) {
  if (visited >= all || (visited >= 0 && visited % batch_size == 0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "visited is ", visited, ", must be a multiple of the batch_size of ",
      batch_size, ": ranks can stop only between two batches"));
}

// Returns the epoch's samples, padded and shuffled by the ranks that began it.
std::vector<int32_t> Samples(const PaddleSamplerOptions& options, int64_t ranks,
                             int64_t epoch) {
  std::vector<int32_t> samples(RoundUp(options.dataset_size, ranks));
  std::iota(samples.begin(), samples.end(), 0);
  if (options.shuffle) NumpyShuffle(static_cast<uint32_t>(epoch), samples);
  const auto n = static_cast<int32_t>(options.dataset_size);
  for (int32_t& sample : samples) sample %= n;
  return samples;
}

// Keeps the first occurrence of each sample and removes the others.
void RemoveRepeats(int64_t dataset_size, std::vector<int32_t>& samples) {
  std::vector<bool> seen(dataset_size);
  size_t kept = 0;
  for (const int32_t sample : samples) {
    if (!seen[sample]) samples[kept++] = sample;
    seen[sample] = true;
  }
  samples.resize(kept);
}

// Returns whether the ranks of `place` are the ones that began its epoch.
bool IsAtFirstWorldSize(const SamplerState& place) {
  return place.before == 0 && place.world_size == place.first_world_size;
}

}  // namespace

absl::StatusOr<PaddleSampler> PaddleSampler::Create(
    const PaddleSamplerOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRankInWorld(options.rank, options.world_size));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckDatasetSize(options.dataset_size, MaxSamples(options.world_size)));
  LOCKSTEP_RETURN_IF_ERROR(CheckBatchSize(options.batch_size));
  return PaddleSampler(options);
}

PaddleSampler::PaddleSampler(const PaddleSamplerOptions& options)
    : EpochSampler(StartOf(options), options.shuffle, options.repeated_draw),
      options_(options) {}

int64_t PaddleSampler::DealtCount() const {
  return RoundUp(options_.dataset_size - place().before, options_.world_size);
}

SampleCounts PaddleSampler::Counts() const {
  const int64_t left = DealtCount() / options_.world_size - place().visited;
  return {.own = left, .fewest = left, .most = left};
}

std::vector<int32_t> PaddleSampler::DealtSamples() const {
  const SamplerState& place = this->place();
  std::vector<int32_t> samples =
      Samples(options_, place.first_world_size, place.epoch);
  if (IsAtFirstWorldSize(place)) return samples;
  RemoveRepeats(options_.dataset_size, samples);
  samples.erase(samples.begin(), samples.begin() + place.before);
  const size_t left = samples.size();
  for (size_t k = 0; std::ssize(samples) < DealtCount(); ++k) {
    samples.push_back(samples[k % left]);
  }
  return samples;
}

absl::StatusOr<EpochIndices> PaddleSampler::Draw() {
  LOCKSTEP_RETURN_IF_ERROR(CheckEpoch(options_, next_epoch()));
  LOCKSTEP_RETURN_IF_ERROR(BeginDraw());
  const std::vector<int32_t> samples = DealtSamples();
  const int64_t ranks = options_.world_size;
  const int64_t batch = options_.batch_size;
  const int64_t own = std::ssize(samples) / ranks;
  const int64_t whole =
      own / batch * batch;  // The end of the last whole batch.
  std::vector<int64_t> list;
  list.reserve(Counts().own);
  for (int64_t begin = place().visited; begin < own;) {
    // The size of a full batch, or of the rank's part of the remaining samples.
    const int64_t size = begin < whole ? batch : own - whole;
    const auto first = samples.begin() + begin * ranks + options_.rank * size;
    list.insert(list.end(), first, first + size);
    begin += size;
  }
  return EpochIndices(std::move(list));
}

absl::StatusOr<SamplerState> PaddleSampler::StateAfter(int64_t visited) const {
  const int64_t left = Counts().own;
  LOCKSTEP_RETURN_IF_ERROR(
      CheckBetweenBatches(visited, left, options_.batch_size));
  SamplerState state = place();
  state.visited += std::min(visited, left);
  return state;
}

absl::Status PaddleSampler::Restore(const SamplerState& state) {
  SamplerState here = start();
  const int64_t n = options_.dataset_size;
  LOCKSTEP_RETURN_IF_ERROR(CheckState(state, here, n));
  LOCKSTEP_RETURN_IF_ERROR(CheckEpoch(options_, state.epoch));
  if (n > MaxSamples(state.first_world_size)) {
    return absl::InvalidArgumentError(absl::StrCat(
        state.first_world_size, " ranks began the state's epoch, too many for ",
        n, " samples"));
  }
  const int64_t all =
      RoundUp(n - state.before, state.world_size) / state.world_size;
  LOCKSTEP_RETURN_IF_ERROR(
      CheckBetweenBatches(state.visited, all, state.batch_size));
  here.epoch = state.epoch;
  here.first_world_size = state.first_world_size;
  if (state.world_size == options_.world_size &&
      state.batch_size == options_.batch_size) {
    here.before = state.before;
    here.visited = state.visited;
  } else if (IsAtFirstWorldSize(state)) {
    // A sample that was visited twice because of padding counts once.
    std::vector<int32_t> visited =
        Samples(options_, state.first_world_size, state.epoch);
    visited.resize(std::min<int64_t>(std::ssize(visited),
                                     state.visited * state.world_size));
    RemoveRepeats(n, visited);
    here.before = std::ssize(visited);
    if (here.before == 0) here.first_world_size = options_.world_size;
  } else {
    here.before = std::min(n, state.before + state.visited * state.world_size);
  }
  SetPlace(here);
  return absl::OkStatus();
}

}  // namespace lockstep
