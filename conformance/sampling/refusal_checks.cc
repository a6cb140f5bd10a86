// Checks the options, draws and states that a sampler must refuse.
#include "conformance/sampling/refusal_checks.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"
#include "sampler/sampler.h"

namespace lockstep::conformance {
namespace {

// Checks that the rank refuses the case, with `name` in the message. what: the
// fault of the case.
absl::Status CheckRefusal(const SamplerFactory& make, const SamplingCase& c,
                          int rank, const std::string& name,
                          const std::string& what) {
  const auto sampler = make(c, rank);
  const std::string where = absl::StrCat("rank ", rank, ": ", what);
  if (sampler.ok())
    return PropertyError("Guards", c, where + " is not refused");
  const std::string message(sampler.status().message());
  if (sampler.status().code() != absl::StatusCode::kInvalidArgument ||
      !absl::StrContains(message, name)) {
    return PropertyError("Guards", c,
                         absl::StrCat(where, " is refused without saying ",
                                      name, ": ", sampler.status().ToString()));
  }
  return absl::OkStatus();
}

// Checks likewise that the case is refused if one of its numbers is `value`.
template <typename T>
absl::Status CheckNumber(const SamplerFactory& make, SamplingCase c,
                         T SamplingCase::*number, const std::string& name,
                         int value) {
  c.*number = value;
  return CheckRefusal(make, c, 0, absl::StrCat(name, " is ", value),
                      absl::StrCat("a ", name, " of ", value));
}

RepeatedDraw ModeOf(const SamplingCase& c) {
  const RepeatedDraw mode = c.repeated_draw.value_or(
      c.semantics == Semantics::kPaddle ? RepeatedDraw::kAdvance
                                        : RepeatedDraw::kRefuse);
  // An order that no epoch changes may be drawn again.
  return mode == RepeatedDraw::kRefuse && c.shuffle == Shuffle::kNone
             ? RepeatedDraw::kAllow
             : mode;
}

// Returns how the draw after one of epoch 0 breaks the mode, or none.
std::optional<std::string> WrongSecondDraw(
    const std::vector<std::vector<Batches>>& epochs, RepeatedDraw mode,
    size_t rank, const absl::StatusOr<Batches>& got) {
  if (mode != RepeatedDraw::kRefuse) {
    if (!got.ok()) return absl::StrCat("is refused: ", got.status().ToString());
    const size_t epoch = mode == RepeatedDraw::kAdvance ? 1 : 0;
    const auto difference =
        FirstDifference(*got, epochs[epoch][rank], static_cast<int>(rank));
    if (!difference.has_value()) return std::nullopt;
    return absl::StrCat("is not epoch ", epoch, ": ", *difference);
  }
  if (got.ok()) return "is not refused";
  const std::string message(got.status().message());
  if (got.status().code() == absl::StatusCode::kFailedPrecondition &&
      absl::StrContains(message, "SetEpoch")) {
    return std::nullopt;
  }
  return absl::StrCat("is refused without saying SetEpoch: ",
                      got.status().ToString());
}

// Checks the second draw, in the requested mode or by default. Also checks that
// the epoch can be set afterwards.
absl::Status CheckMode(const SamplerFactory& make, const SamplingCase& c,
                       const std::vector<std::vector<Batches>>& epochs) {
  const std::string as =
      c.repeated_draw.has_value() ? "as asked for" : "by default";
  for (size_t rank = 0; rank < epochs[0].size(); ++rank) {
    const int number = static_cast<int>(rank);
    LOCKSTEP_ASSIGN_OR_RETURN(const auto sampler, make(c, number));
    LOCKSTEP_RETURN_IF_ERROR(DrawEpoch(*sampler).status());
    const auto wrong =
        WrongSecondDraw(epochs, ModeOf(c), rank, DrawEpoch(*sampler));
    if (wrong.has_value()) {
      return PropertyError("RepeatedDraw", c,
                           absl::StrCat("the second draw, ", as, ", ", *wrong));
    }
    sampler->SetEpoch(2);
    LOCKSTEP_ASSIGN_OR_RETURN(const Batches next, DrawEpoch(*sampler));
    const auto difference = FirstDifference(next, epochs[2][rank], number);
    if (!difference.has_value()) continue;
    return PropertyError("RepeatedDraw", c,
                         absl::StrCat("after two draws, ", as,
                                      ", epoch 2 is another: ", *difference));
  }
  return absl::OkStatus();
}

// A state that must be refused, and the words that the error must contain.
struct BadState {
  std::string what;
  SamplerState state;
  std::string words;
};

absl::StatusOr<std::vector<BadState>> StatesOfOthers(const SamplerFactory& make,
                                                     const SamplingCase& c) {
  SamplingCase larger = c, other = c, seeded = c;
  ++larger.dataset_size;
  other.shuffle = c.shuffle == Shuffle::kNone ? Shuffle::kOwn : Shuffle::kNone;
  ++seeded.seed;
  std::vector<std::pair<std::string, SamplingCase>> others = {
      {"another data set", larger}, {"another order", other}};
  if (c.semantics != Semantics::kPaddle && c.shuffle != Shuffle::kNone) {
    others.emplace_back("another seed", seeded);
  }
  std::vector<BadState> bad;
  for (const auto& [what, of] : others) {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto sampler, make(of, 0));
    LOCKSTEP_ASSIGN_OR_RETURN(const SamplerState state, sampler->State());
    bad.push_back({what, state, state.order});
  }
  return bad;
}

std::vector<BadState> StatesOutOfRange(const SamplingCase& c,
                                       const SamplerState& start) {
  std::vector<BadState> bad;
  const auto add = [&](const std::string& key, int64_t SamplerState::*number,
                       int64_t value) {
    BadState& added = bad.emplace_back();
    added = {absl::StrCat(key, "=", value), start,
             absl::StrCat(key, " is ", value)};
    added.state.*number = value;
  };
  add("before", &SamplerState::before, -1);
  add("before", &SamplerState::before, c.dataset_size + 1);
  add("first_world_size", &SamplerState::first_world_size, 0);
  add("world_size", &SamplerState::world_size, -1);
  add("batch_size", &SamplerState::batch_size, 0);
  add("visited", &SamplerState::visited, -1);
  // A sampler may take a place just beyond the end of a rank's epoch for the
  // end.
  add("visited", &SamplerState::visited, c.dataset_size + 2);
  if (c.semantics != Semantics::kPaddle) return bad;
  if (c.shuffle != Shuffle::kNone) add("epoch", &SamplerState::epoch, -1);
  if (c.batch_size > 1 && LengthOf(c, 0) > 1) {
    add("visited", &SamplerState::visited, 1);
    bad.back().words = "between two batches";
  }
  return bad;
}

absl::Status CheckBadState(const SamplerFactory& make, const SamplingCase& c,
                           const BadState& bad, const SamplerState& start,
                           const Batches& want, bool is_begun) {
  const int rank = c.world_size - 1;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto sampler, make(c, rank));
  sampler->SetEpoch(start.epoch);
  Batches got;
  if (is_begun) {
    LOCKSTEP_RETURN_IF_ERROR(sampler->BeginEpoch());
    if (auto batch = sampler->NextBatch()) got.push_back(*std::move(batch));
  }
  const absl::Status status = sampler->Restore(bad.state);
  if (status.ok()) {
    return PropertyError(
        "BadStates", c,
        absl::StrCat("a state of ", bad.what, " is not refused"));
  }
  if (status.code() != absl::StatusCode::kInvalidArgument ||
      !absl::StrContains(std::string(status.message()), bad.words)) {
    return PropertyError(
        "BadStates", c,
        absl::StrCat("a state of ", bad.what, " is refused without saying ",
                     bad.words, ": ", status.ToString()));
  }
  if (!is_begun) LOCKSTEP_RETURN_IF_ERROR(sampler->BeginEpoch());
  LOCKSTEP_RETURN_IF_ERROR(DrawRemaining(*sampler, got));
  const auto difference = FirstDifference(got, want, rank);
  if (!difference.has_value()) return absl::OkStatus();
  return PropertyError(
      "BadStates", c,
      absl::StrCat("once a state of ", bad.what, " is refused",
                   is_begun ? " after a batch" : "",
                   ", the sampler is not as it was: ", *difference));
}

}  // namespace

absl::Status CheckGuards(const SamplerFactory& make, const SamplingCase& c) {
  if (StepsOf(c) == 0) {
    for (int rank = 0; rank < c.world_size; ++rank) {
      LOCKSTEP_RETURN_IF_ERROR(CheckRefusal(make, c, rank, "drop_last",
                                            "an epoch that drop_last empties"));
    }
    return absl::OkStatus();
  }
  LOCKSTEP_RETURN_IF_ERROR(
      CheckRefusal(make, c, -1, "rank is -1", "a rank of -1"));
  LOCKSTEP_RETURN_IF_ERROR(CheckRefusal(make, c, c.world_size,
                                        absl::StrCat("rank is ", c.world_size),
                                        "a rank as large as the world"));
  for (const int wrong : {0, -1}) {
    LOCKSTEP_RETURN_IF_ERROR(CheckNumber(make, c, &SamplingCase::dataset_size,
                                         "dataset_size", wrong));
    LOCKSTEP_RETURN_IF_ERROR(
        CheckNumber(make, c, &SamplingCase::world_size, "world_size", wrong));
    LOCKSTEP_RETURN_IF_ERROR(
        CheckNumber(make, c, &SamplingCase::batch_size, "batch_size", wrong));
  }
  return absl::OkStatus();
}

absl::Status CheckRepeatedDraw(
    const SamplerFactory& make, const SamplingCase& c,
    const std::vector<std::vector<Batches>>& epochs) {
  SamplingCase asked = c;
  LOCKSTEP_RETURN_IF_ERROR(CheckMode(make, asked, epochs));
  for (const RepeatedDraw mode :
       {RepeatedDraw::kRefuse, RepeatedDraw::kAdvance, RepeatedDraw::kAllow}) {
    asked.repeated_draw = mode;
    LOCKSTEP_RETURN_IF_ERROR(CheckMode(make, asked, epochs));
  }
  return absl::OkStatus();
}

absl::Status CheckBadStates(const SamplerFactory& make, const SamplingCase& c,
                            const SamplerState& start, const Batches& want) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<BadState> all, StatesOfOthers(make, c));
  for (BadState& bad : StatesOutOfRange(c, start))
    all.push_back(std::move(bad));
  for (const BadState& bad : all) {
    for (const bool is_begun : {false, true}) {
      LOCKSTEP_RETURN_IF_ERROR(
          CheckBadState(make, c, bad, start, want, is_begun));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::conformance
