// Padding, shuffling, and dealing by the batch.
#include "sampler/paddle_sampler.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "sampler/permutation.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// So that padding stays below 2^31 too.
int64_t MostSamples(int64_t ranks) {
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
  return absl::InvalidArgumentError(absl::StrCat(
      "epoch is ", epoch, ", must be in [0, ", kMaxSeed, "]: it seeds numpy"));
}

// Between two batches, or after all that a rank has, all ranks can stop.
absl::Status CheckBetweenBatches(int64_t visited, int64_t all,
                                 int64_t batch_size) {
  if (visited >= all || (visited >= 0 && visited % batch_size == 0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "visited is ", visited, ", must be a multiple of the batch_size of ",
      batch_size, ": ranks can stop only between two batches"));
}

// The epoch as the ranks that began it padded and shuffled it.
std::vector<int32_t> Samples(const PaddleSamplerOptions& options, int64_t ranks,
                             int64_t epoch) {
  std::vector<int32_t> samples(RoundUp(options.dataset_size, ranks));
  std::iota(samples.begin(), samples.end(), 0);
  if (options.shuffle) NumpyShuffle(static_cast<uint32_t>(epoch), samples);
  const auto n = static_cast<int32_t>(options.dataset_size);
  for (int32_t& sample : samples) sample %= n;
  return samples;
}

// Without the samples that came before: all but the first of each.
void KeepEachOnce(int64_t dataset_size, std::vector<int32_t>& samples) {
  std::vector<bool> seen(dataset_size);
  size_t kept = 0;
  for (const int32_t sample : samples) {
    if (!seen[sample]) samples[kept++] = sample;
    seen[sample] = true;
  }
  samples.resize(kept);
}

// Whether the ranks of `place` are those that began its epoch.
bool IsFirst(const SamplerState& place) {
  return place.before == 0 && place.world_size == place.first_world_size;
}

}  // namespace

absl::StatusOr<PaddleSampler> PaddleSampler::Create(
    const PaddleSamplerOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRankInWorld(options.rank, options.world_size));
  LOCKSTEP_RETURN_IF_ERROR(
      CheckDatasetSize(options.dataset_size, MostSamples(options.world_size)));
  LOCKSTEP_RETURN_IF_ERROR(CheckBatchSize(options.batch_size));
  return PaddleSampler(options);
}

PaddleSampler::PaddleSampler(const PaddleSamplerOptions& options)
    : options_(options),
      cursor_(StartOf(options), options.shuffle, options.repeated_draw) {}

int64_t PaddleSampler::Dealt() const {
  return RoundUp(options_.dataset_size - cursor_.place().before,
                 options_.world_size);
}

SampleCounts PaddleSampler::Counts() const {
  const int64_t left = Dealt() / options_.world_size - cursor_.place().visited;
  return {.own = left, .fewest = left, .most = left};
}

std::vector<int32_t> PaddleSampler::DealtSamples() const {
  const SamplerState& place = cursor_.place();
  std::vector<int32_t> samples =
      Samples(options_, place.first_world_size, place.epoch);
  if (IsFirst(place)) return samples;
  KeepEachOnce(options_.dataset_size, samples);
  samples.erase(samples.begin(), samples.begin() + place.before);
  const size_t left = samples.size();
  for (size_t k = 0; std::ssize(samples) < Dealt(); ++k) {
    samples.push_back(samples[k % left]);
  }
  return samples;
}

absl::StatusOr<EpochIndices> PaddleSampler::Draw() {
  LOCKSTEP_RETURN_IF_ERROR(CheckEpoch(options_, cursor_.next_epoch()));
  LOCKSTEP_RETURN_IF_ERROR(cursor_.BeginDraw());
  const std::vector<int32_t> samples = DealtSamples();
  const int64_t ranks = options_.world_size;
  const int64_t batch = options_.batch_size;
  const int64_t own = std::ssize(samples) / ranks;
  const int64_t whole =
      own / batch * batch;  // The end of the last whole batch.
  std::vector<int64_t> list;
  list.reserve(Counts().own);
  for (int64_t begin = cursor_.place().visited; begin < own;) {
    // A batch of the rank, or its part of what is left.
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
  SamplerState state = cursor_.place();
  state.visited += std::min(visited, left);
  return state;
}

absl::Status PaddleSampler::Restore(const SamplerState& state) {
  SamplerState here = StartOf(options_);
  const int64_t n = options_.dataset_size;
  LOCKSTEP_RETURN_IF_ERROR(CheckState(state, here, n));
  LOCKSTEP_RETURN_IF_ERROR(CheckEpoch(options_, state.epoch));
  if (n > MostSamples(state.first_world_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state is of an epoch that ", state.first_world_size,
                     " ranks began, too many for ", n, " samples"));
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
  } else if (IsFirst(state)) {
    // A sample that was visited twice, as padding is, counts once.
    std::vector<int32_t> visited =
        Samples(options_, state.first_world_size, state.epoch);
    visited.resize(std::min<int64_t>(std::ssize(visited),
                                     state.visited * state.world_size));
    KeepEachOnce(n, visited);
    here.before = std::ssize(visited);
    if (here.before == 0) here.first_world_size = options_.world_size;
  } else {
    here.before = std::min(n, state.before + state.visited * state.world_size);
  }
  cursor_.Restore(here);
  return absl::OkStatus();
}

}  // namespace lockstep
