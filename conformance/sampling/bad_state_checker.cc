// States that are of no place in the epoch.
#include "conformance/sampling/bad_state_checker.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/sampling/sampling_case.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/sampling_subject.h"
#include "sampler/sampler_state.h"

namespace lockstep {
namespace {

// A state that must be refused, by words in the error.
struct BadState {
  std::string what;
  SamplerState state;
  std::string words;
};

absl::StatusOr<SamplerState> StateOf(const SubjectFactory& make,
                                     const SamplingCase& c) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto subject, make(c, 0));
  return subject->State();
}

absl::StatusOr<std::vector<BadState>> StatesOfOthers(const SubjectFactory& make,
                                                     const SamplingCase& c) {
  std::vector<BadState> bad;
  SamplingCase larger = c;
  ++larger.dataset_size;
  LOCKSTEP_ASSIGN_OR_RETURN(const SamplerState of_larger,
                            StateOf(make, larger));
  bad.push_back({"another data set", of_larger, of_larger.order});
  SamplingCase other = c;
  other.shuffle = c.shuffle == Shuffle::kNone ? Shuffle::kOwn : Shuffle::kNone;
  LOCKSTEP_ASSIGN_OR_RETURN(const SamplerState of_other, StateOf(make, other));
  bad.push_back({"another order", of_other, of_other.order});
  if (c.semantics == Semantics::kPaddle || c.shuffle == Shuffle::kNone) {
    return bad;
  }
  SamplingCase seeded = c;
  ++seeded.seed;
  LOCKSTEP_ASSIGN_OR_RETURN(const SamplerState of_seed, StateOf(make, seeded));
  bad.push_back({"another seed", of_seed, of_seed.order});
  return bad;
}

std::vector<BadState> StatesOfNoPlace(const SamplingCase& c,
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
  // A place just beyond the end of a rank's epoch may be taken for the end.
  add("visited", &SamplerState::visited, c.dataset_size + 2);
  if (c.semantics != Semantics::kPaddle) return bad;
  if (c.shuffle != Shuffle::kNone) add("epoch", &SamplerState::epoch, -1);
  if (c.batch_size > 1 && LengthOf(c, 0) > 1) {
    add("visited", &SamplerState::visited, 1);
    bad.back().words = "between two batches";
  }
  return bad;
}

absl::Status CheckBadState(const SubjectFactory& make, const SamplingCase& c,
                           const BadState& bad, const SamplerState& start,
                           const Batches& want, bool is_begun) {
  const int rank = c.world_size - 1;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto subject, make(c, rank));
  subject->SetEpoch(start.epoch);
  Batches got;
  if (is_begun) {
    LOCKSTEP_RETURN_IF_ERROR(subject->BeginEpoch());
    if (auto batch = subject->NextBatch()) got.push_back(*std::move(batch));
  }
  const absl::Status status = subject->Restore(bad.state);
  if (status.ok()) {
    return Breaks("BadStates", c,
                  absl::StrCat("a state of ", bad.what, " is not refused"));
  }
  if (status.code() != absl::StatusCode::kInvalidArgument ||
      !absl::StrContains(std::string(status.message()), bad.words)) {
    return Breaks(
        "BadStates", c,
        absl::StrCat("a state of ", bad.what, " is refused without saying ",
                     bad.words, ": ", status.ToString()));
  }
  if (!is_begun) LOCKSTEP_RETURN_IF_ERROR(subject->BeginEpoch());
  LOCKSTEP_RETURN_IF_ERROR(DrawRest(*subject, got));
  const auto difference = FirstDifference(got, want, rank);
  if (!difference.has_value()) return absl::OkStatus();
  return Breaks("BadStates", c,
                absl::StrCat("once a state of ", bad.what, " is refused",
                             is_begun ? " after a batch" : "",
                             ", the sampler is not as it was: ", *difference));
}

}  // namespace

absl::Status CheckBadStates(const SubjectFactory& make, const SamplingCase& c,
                            const SamplerState& start, const Batches& want) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<BadState> all, StatesOfOthers(make, c));
  for (BadState& bad : StatesOfNoPlace(c, start)) all.push_back(std::move(bad));
  for (const BadState& bad : all) {
    for (const bool is_begun : {false, true}) {
      LOCKSTEP_RETURN_IF_ERROR(
          CheckBadState(make, c, bad, start, want, is_begun));
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
