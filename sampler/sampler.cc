#include "sampler/sampler.h"

#include <algorithm>
#include <cstdint>
#include <limits>
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
                     " indices is too long to hold in memory, at most ",
                     kMaxSize, " are: read it in parts"));
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
    return absl::InvalidArgumentError("the sampler's state is no JSON object");
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

}  // namespace lockstep
