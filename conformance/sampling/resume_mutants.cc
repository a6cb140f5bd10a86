// Faults in states: what is saved, and what becomes of it.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/sampling/sampling_mutants.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"
#include "conformance/sampling/wrong_draws.h"
#include "sampler/sampler.h"

namespace lockstep {
namespace {

bool Always(const SamplingCase&) { return true; }
bool DropsNothing(const SamplingCase& c) {
  return !c.drop_last && !c.drop_tail;
}

absl::Status RestoreMoved(SamplingSubject& real, SamplerState state,
                          int64_t samples) {
  state.visited = std::max<int64_t>(0, state.visited + samples);
  return real.Restore(state);
}

absl::Status RepeatABatch(SamplingSubject& real, const SamplingCase& c,
                          const SamplerState& state) {
  return RestoreMoved(real, state, -c.batch_size);
}

absl::Status SkipABatch(SamplingSubject& real, const SamplingCase& c,
                        const SamplerState& state) {
  return RestoreMoved(real, state, c.batch_size);
}

absl::Status StartAgain(SamplingSubject& real, const SamplingCase& c,
                        const SamplerState& state) {
  if (state.world_size == c.world_size) return real.Restore(state);
  real.SetEpoch(state.epoch);
  return absl::OkStatus();
}

absl::Status KeepTheCount(SamplingSubject& real, const SamplingCase& c,
                          const SamplerState& state) {
  SamplerState kept = state;
  kept.world_size = c.world_size;
  return real.Restore(kept);
}

absl::Status TakeAnyState(SamplingSubject& real, const SamplingCase&,
                          const SamplerState& state) {
  real.Restore(state).IgnoreError();
  return absl::OkStatus();
}

// Takes a state of its own order, wherever it is.
absl::Status TakeAnyPlace(SamplingSubject& real, const SamplingCase&,
                          const SamplerState& state) {
  const absl::Status status = real.Restore(state);
  LOCKSTEP_ASSIGN_OR_RETURN(const SamplerState here, real.State());
  return state.order == here.order ? absl::OkStatus() : status;
}

// Takes one of as many samples, where both orders are shuffled or are not ...
absl::Status TakeAnySeed(SamplingSubject& real, const SamplingCase& c,
                         const SamplerState& state) {
  const absl::Status status = real.Restore(state);
  LOCKSTEP_ASSIGN_OR_RETURN(const SamplerState here, real.State());
  const bool is_other_seed =
      state.order != here.order &&
      absl::StartsWith(state.order, absl::StrCat(c.dataset_size, " ")) &&
      absl::StrContains(state.order, "seed") ==
          absl::StrContains(here.order, "seed");
  return is_other_seed ? absl::OkStatus() : status;
}

// ... and where one is.
absl::Status TakeAnyOrder(SamplingSubject& real, const SamplingCase& c,
                          const SamplerState& state) {
  const absl::Status status = real.Restore(state);
  LOCKSTEP_ASSIGN_OR_RETURN(const SamplerState here, real.State());
  const bool is_other_order =
      absl::StartsWith(state.order, absl::StrCat(c.dataset_size, " ")) &&
      absl::StrContains(state.order, "in order") !=
          absl::StrContains(here.order, "in order");
  return is_other_order ? absl::OkStatus() : status;
}

absl::Status RefuseWithoutSaying(SamplingSubject& real, const SamplingCase&,
                                 const SamplerState& state) {
  if (real.Restore(state).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError("the state is wrong");
}

// Once a batch is drawn, goes back to the start.
absl::Status MoveFromABatchIfRefused(SamplingSubject& real, const SamplingCase&,
                                     const SamplerState& state) {
  const absl::Status status = real.Restore(state);
  if (status.ok()) return status;
  LOCKSTEP_ASSIGN_OR_RETURN(SamplerState moved, real.State());
  if (moved.visited == 0) return status;
  moved.visited = 0;
  LOCKSTEP_RETURN_IF_ERROR(real.Restore(moved));
  return status;
}

// Goes to the end of the epoch.
absl::Status MoveIfRefused(SamplingSubject& real, const SamplingCase& c,
                           const SamplerState& state) {
  const absl::Status status = real.Restore(state);
  if (status.ok()) return status;
  LOCKSTEP_ASSIGN_OR_RETURN(SamplerState moved, real.State());
  moved.visited = LengthOf(c, 0);
  LOCKSTEP_RETURN_IF_ERROR(real.Restore(moved));
  return status;
}

void KeepThePlace(SamplingSubject& real,
                  const std::optional<SamplerState>& restored, int64_t epoch) {
  if (!restored.has_value()) return real.SetEpoch(epoch);
  SamplerState state = *restored;
  state.epoch = epoch;
  real.Restore(state).IgnoreError();
}

// Once a batch is drawn from there.
void StayInABegunEpoch(SamplingSubject& real,
                       const std::optional<SamplerState>& restored,
                       int64_t epoch) {
  const auto here = real.State();
  const bool is_begun =
      restored.has_value() && here.ok() && here->visited != restored->visited;
  real.SetEpoch(is_begun ? restored->epoch : epoch);
}

void ForgetWhatOthersVisited(SamplerState& state, int) {
  state.first_world_size = state.world_size;
  state.before = 0;
}

std::vector<SamplingFault> StateFaults() {
  return {
      {.name = "SavesAnotherStateOnEachRank",
       .bug = "a state counts what this rank alone has visited",
       .property = "States",
       .says = "rank 1's state is",
       .shows = [](const SamplingCase& c) { return c.world_size > 1; },
       .saves = [](SamplerState& state, int rank) { state.visited += rank; }},
      {.name = "SavesNoEpoch",
       .bug = "a resumed epoch is the first",
       .property = "Resume",
       .says = "as if it were epoch 0",
       .shows =
           [](const SamplingCase& c) {
             return c.shuffle != Shuffle::kNone &&
                    c.dataset_size >= kManySamples;
           },
       .saves = [](SamplerState& state, int) { state.epoch = 0; }},
      {.name = "ForgetsWhatOthersVisited",
       .bug = "a second state has lost what was visited before the first",
       .property = "Rescale",
       .says = "as if only what the last ranks visited had been",
       .shows =
           [](const SamplingCase& c) {
             return c.semantics != Semantics::kPaddle && DropsNothing(c) &&
                    StepsOf(c) >= 6;
           },
       .saves = ForgetWhatOthersVisited},
  };
}

std::vector<SamplingFault> RestoreFaults() {
  return {
      {.name = "RepeatsABatch",
       .bug = "a batch that was drawn before the stop comes again",
       .property = "Resume",
       .says = "as if a batch came again",
       .shows =
           [](const SamplingCase& c) { return LengthOf(c, 0) > c.batch_size; },
       .restores = RepeatABatch},
      {.name = "SkipsABatch",
       .bug = "the first batch after the stop does not come",
       .property = "Resume",
       .says = "as if a batch were skipped",
       .shows =
           [](const SamplingCase& c) {
             return LengthOf(c, c.world_size - 1) >= c.batch_size;
           },
       .restores = SkipABatch},
      {.name = "StartsAgainAtAnotherWorldSize",
       .bug = "ranks of another number begin the epoch anew",
       .property = "Rescale",
       .says = "as if the epoch began anew",
       .shows = DropsNothing,
       .restores = StartAgain},
      {.name = "KeepsTheCountAtAnotherWorldSize",
       .bug = "as many samples of each rank are taken as visited, of whatever "
              "number of ranks",
       .property = "Rescale",
       .says = "ranks had visited as many as each of 1",
       .shows =
           [](const SamplingCase& c) {
             // Padding would be found first.
             return c.semantics == Semantics::kExact && !c.drop_last &&
                    c.world_size == 1 && c.dataset_size >= 4 * c.batch_size;
           },
       .restores = KeepTheCount},
      {.name = "ReversesTheRest",
       .bug = "at another world size, what is left is dealt from its end",
       .property = "Rescale",
       .says = "those that were left, in another order",
       .shows =
           [](const SamplingCase& c) {
             return c.semantics != Semantics::kPaddle && DropsNothing(c) &&
                    c.dataset_size > 1;
           },
       .draws_rest = ReverseTheRest},
      {.name = "PadsTheRestTwice",
       .bug = "at another world size, each rank gets one padding index more",
       .property = "Rescale",
       .says = "indices are drawn twice, padding is at most",
       .shows =
           [](const SamplingCase& c) {
             return c.semantics != Semantics::kPaddle && DropsNothing(c);
           },
       .draws_rest = PadTheRestTwice},
      {.name = "KeepsItsPlaceInTheNextEpoch",
       .bug = "an epoch set after a restored one begins where that did",
       .property = "NextEpoch",
       .says = "where the one before was stopped",
       .shows = Always,
       .sets_epoch = KeepThePlace},
      {.name = "StaysInABegunEpoch",
       .bug = "no epoch can be set once a batch is drawn after a state",
       .property = "NextEpoch",
       .says = "as if it were still epoch 1",
       .shows =
           [](const SamplingCase& c) {
             return c.shuffle != Shuffle::kNone &&
                    c.dataset_size >= kManySamples;
           },
       .sets_epoch = StayInABegunEpoch},
      {.name = "TakesAnyState",
       .bug = "a state that is impossible or of another order is taken",
       .property = "BadStates",
       .says = "a state of another data set is not refused",
       .shows = Always,
       .restores = TakeAnyState},
      {.name = "TakesAnyPlace",
       .bug = "a state of this order is taken though its place is impossible",
       .property = "BadStates",
       .says = "a state of before=-1 is not refused",
       .shows = Always,
       .restores = TakeAnyPlace},
      {.name = "TakesAnyOrder",
       .bug = "a state in order is taken for a shuffled one, and the reverse",
       .property = "BadStates",
       .says = "a state of another order is not refused",
       .shows = Always,
       .restores = TakeAnyOrder},
      {.name = "TakesAnySeed",
       .bug = "a state of another seed's order is taken",
       .property = "BadStates",
       .says = "a state of another seed is not refused",
       .shows =
           [](const SamplingCase& c) {
             return c.semantics != Semantics::kPaddle &&
                    c.shuffle != Shuffle::kNone;
           },
       .restores = TakeAnySeed},
      {.name = "RefusesWithoutSaying",
       .bug = "a state is refused, but not by what is wrong with it",
       .property = "BadStates",
       .says = "is refused without saying",
       .shows = Always,
       .restores = RefuseWithoutSaying},
      {.name = "MovesFromABatchOnARefusedState",
       .bug = "a state that is refused ends the epoch that was being drawn",
       .property = "BadStates",
       .says = "is refused after a batch, the sampler is not as it was",
       .shows = [](const SamplingCase& c) { return StepsOf(c) > 1; },
       .restores = MoveFromABatchIfRefused},
      {.name = "MovesOnARefusedState",
       .bug = "a state that is refused moves the sampler all the same",
       .property = "BadStates",
       .says = "is refused, the sampler is not as it was",
       .shows = Always,
       .restores = MoveIfRefused},
  };
}

}  // namespace

std::vector<SamplingFault> ResumeFaults() {
  std::vector<SamplingFault> all = StateFaults();
  for (const SamplingFault& fault : RestoreFaults()) all.push_back(fault);
  return all;
}

}  // namespace lockstep
