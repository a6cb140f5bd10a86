// Draws, repeated draws, and states from elsewhere.
#include "sampler/epoch_cursor.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sampler/sampler.h"
#include "sampler/sampler_state.h"

namespace lockstep {

EpochCursor::EpochCursor(SamplerState start, bool shuffle,
                         RepeatedDraw repeated_draw)
    : start_(std::move(start)),
      place_(start_),
      repeated_draw_(!shuffle && repeated_draw == RepeatedDraw::kRefuse
                         ? RepeatedDraw::kAllow
                         : repeated_draw) {}

void EpochCursor::SetEpoch(int64_t epoch) {
  place_ = start_;
  place_.epoch = epoch;
  drawn_ = false;
}

void EpochCursor::Restore(const SamplerState& state) {
  place_ = state;
  drawn_ = false;
}

absl::Status EpochCursor::BeginDraw() {
  if (drawn_) {
    switch (repeated_draw_) {
      case RepeatedDraw::kRefuse:
        return absl::FailedPreconditionError(absl::StrCat(
            "epoch ", place_.epoch,
            " is drawn a second time: call SetEpoch before each epoch, or "
            "every epoch has the same order (RepeatedDraw::kAllow if it "
            "should)"));
      case RepeatedDraw::kAdvance:
        SetEpoch(place_.epoch + 1);
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
    return absl::InvalidArgumentError(absl::StrCat(
        "the state is of ", state.order, ", the sampler of ", start.order));
  }
  constexpr int64_t kMaxRanks = std::numeric_limits<int>::max();
  const auto is_ranks = [](int64_t n) { return n >= 1 && n <= kMaxRanks; };
  if (!is_ranks(state.first_world_size) || !is_ranks(state.world_size) ||
      state.batch_size < 1 || state.before < 0 || state.before > dataset_size ||
      state.visited < 0 ||
      state.visited > dataset_size / state.world_size + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state is no place in an epoch of ", dataset_size,
                     " samples: ", ToJson(state)));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
