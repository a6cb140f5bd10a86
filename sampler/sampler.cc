#include "sampler/sampler.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "sampler/batch_sampler.h"

namespace lockstep {
namespace {

constexpr std::pair<const char*, int64_t SamplerState::*> kNumbers[] = {
    {"epoch", &SamplerState::epoch},
    {"first_world_size", &SamplerState::first_world_size},
    {"before", &SamplerState::before},
    {"world_size", &SamplerState::world_size},
    {"batch_size", &SamplerState::batch_size},
    {"visited", &SamplerState::visited},
};

bool IsInt64(const nlohmann::json& value) {
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  return value.is_number_unsigned() ? value.get<uint64_t>() <= kMax
                                    : value.is_number_integer();
}

}  // namespace

void EpochIndices::Read(int64_t first, std::span<int64_t> out) const {
  if (!part_) {
    std::copy_n(list_.begin() + first, out.size(), out.begin());
    return;
  }
  for (int64_t& entry : out) entry = part_->At(first++);
  if (permutation_) permutation_->Map(out);
}

absl::StatusOr<std::vector<int64_t>> EpochIndices::TakeAll() && {
  if (!part_) return std::move(list_);
  constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();
  if (size() > kMaxSize) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a list of ", size(),
                     " indices is too long to hold in memory; at most ",
                     kMaxSize, " are allowed; read the indices in parts"));
  }
  std::vector<int64_t> all(size());
  Read(0, all);
  return all;
}

std::string ToJson(const SamplerState& state) {
  nlohmann::ordered_json json;
  json["order"] = state.order;
  for (const auto& [key, number] : kNumbers) json[key] = state.*number;
  return json.dump();
}

absl::StatusOr<SamplerState> SamplerStateFromJson(absl::string_view text) {
  const auto json =
      nlohmann::json::parse(text.begin(), text.end(), /*cb=*/nullptr,
                            /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        "the sampler's state is not a JSON object");
  }
  SamplerState state;
  const auto order = json.find("order");
  if (order == json.end() || !order->is_string()) {
    return absl::InvalidArgumentError(
        "the sampler's state has no text \"order\"");
  }
  state.order = order->get<std::string>();
  for (const auto& [key, number] : kNumbers) {
    const auto value = json.find(key);
    if (value == json.end() || !IsInt64(*value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the sampler's state has no integer \"", key, "\""));
    }
    state.*number = value->get<int64_t>();
  }
  return state;
}

absl::StatusOr<std::vector<int64_t>> ResumableSampler::Indices() {
  LOCKSTEP_ASSIGN_OR_RETURN(EpochIndices indices, Draw());
  return std::move(indices).TakeAll();
}

// The messages begin with the option's name, so that a command can prefix them
// with "--".
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

EpochSampler::EpochSampler(SamplerState start, bool shuffle,
                           RepeatedDraw repeated_draw)
    : start_(std::move(start)),
      place_(start_),
      repeated_draw_(!shuffle && repeated_draw == RepeatedDraw::kRefuse
                         ? RepeatedDraw::kAllow
                         : repeated_draw) {}

void EpochSampler::SetEpoch(int64_t epoch) {
  place_ = start_;
  place_.epoch = epoch;
  drawn_ = false;
}

void EpochSampler::SetPlace(const SamplerState& state) {
  place_ = state;
  drawn_ = false;
}

int64_t EpochSampler::next_epoch() const {
  const bool advances = drawn_ && repeated_draw_ == RepeatedDraw::kAdvance;
  // Adds as unsigned integers, because the sum may wrap.
  return static_cast<int64_t>(static_cast<uint64_t>(place_.epoch) +
                              (advances ? 1 : 0));
}

absl::Status EpochSampler::BeginDraw() {
  if (drawn_) {
    switch (repeated_draw_) {
      case RepeatedDraw::kRefuse:
        return absl::FailedPreconditionError(absl::StrCat(
            "epoch ", place_.epoch,
            " is drawn a second time: call SetEpoch before each epoch, since "
            "otherwise every epoch has the same order "
            "(RepeatedDraw::kAllow allows that)"));
      case RepeatedDraw::kAdvance:
        SetEpoch(next_epoch());
        break;
      case RepeatedDraw::kAllow:
        SetEpoch(place_.epoch);
        break;
    }
  }
  drawn_ = true;
  return absl::OkStatus();
}

absl::Status CheckState(const SamplerState& state, const SamplerState& start,
                        int64_t dataset_size) {
  if (state.order != start.order) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state is of ", state.order,
                     ", but the sampler is of ", start.order));
  }
  constexpr int64_t kMaxRanks = std::numeric_limits<int>::max();
  // `left` and `ranks` bound `visited`, with padding. The clamps only keep them
  // defined: a number that is out of range is reported before `visited`.
  const int64_t left =
      dataset_size - std::clamp<int64_t>(state.before, 0, dataset_size);
  const int64_t ranks = std::clamp<int64_t>(state.world_size, 1, kMaxRanks);
  const struct {
    const char* name;
    int64_t value;
    int64_t least;
    int64_t most;
  } numbers[] = {
      {"first_world_size", state.first_world_size, 1, kMaxRanks},
      {"world_size", state.world_size, 1, kMaxRanks},
      {"batch_size", state.batch_size, 1, std::numeric_limits<int64_t>::max()},
      {"before", state.before, 0, dataset_size},
      {"visited", state.visited, 0, (left + ranks - 1) / ranks},
  };
  for (const auto& [name, value, least, most] : numbers) {
    if (value >= least && value <= most) continue;
    return absl::InvalidArgumentError(absl::StrCat("the state's ", name, " is ",
                                                   value, ", must be in [",
                                                   least, ", ", most, "]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<BatchSampler> BatchSampler::Create(
    std::unique_ptr<ResumableSampler> sampler,
    const BatchSamplerOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckBatchSize(options.batch_size));
  // Ranks must be able to stop between two batches.
  LOCKSTEP_RETURN_IF_ERROR(sampler->StateAfter(options.batch_size).status());
  const int64_t fewest = sampler->Counts().fewest;
  if (options.drop_last && fewest < options.batch_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "drop_last leaves no batch: a rank has ", fewest,
        " samples an epoch, below the batch_size of ", options.batch_size));
  }
  return BatchSampler(std::move(sampler), options);
}

BatchSampler::BatchSampler(std::unique_ptr<ResumableSampler> sampler,
                           const BatchSamplerOptions& options)
    : sampler_(std::move(sampler)), options_(options) {}

void BatchSampler::SetEpoch(int64_t epoch) {
  sampler_->SetEpoch(epoch);
  indices_.reset();
  step_ = 0;
}

absl::Status BatchSampler::BeginEpoch() {
  LOCKSTEP_ASSIGN_OR_RETURN(EpochIndices drawn, sampler_->Draw());
  indices_ = std::move(drawn);
  step_ = 0;
  return absl::OkStatus();
}

std::optional<std::span<const int64_t>> BatchSampler::NextBatch() {
  if (!indices_ || step_ == num_batches()) return std::nullopt;
  const int64_t begin = std::min(indices_->size(), step_ * options_.batch_size);
  batch_.resize(std::min(options_.batch_size, indices_->size() - begin));
  indices_->Read(begin, batch_);
  ++step_;
  return batch_;
}

int64_t BatchSampler::num_batches() const {
  const SampleCounts counts = sampler_->Counts();
  if (options_.drop_last) return counts.fewest / options_.batch_size;
  return counts.most / options_.batch_size +
         (counts.most % options_.batch_size != 0 ? 1 : 0);
}

absl::StatusOr<SamplerState> BatchSampler::State() const {
  return sampler_->StateAfter(step_ * options_.batch_size);
}

absl::Status BatchSampler::Restore(const SamplerState& state) {
  LOCKSTEP_RETURN_IF_ERROR(sampler_->Restore(state));
  indices_.reset();
  step_ = 0;
  return absl::OkStatus();
}

}  // namespace lockstep
