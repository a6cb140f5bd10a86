// Mutants of states: of saving and of restoring them.
#include "conformance/sampling/resume_mutants.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "conformance/sampling/sampling_mutants.h"
#include "conformance/sampling/sampling_reference.h"
#include "conformance/sampling/tested_sampler.h"
#include "sampler/sampler.h"

namespace lockstep::conformance {
namespace {

// Resumes so many batches later, or earlier if the number is negative.
template <int kBatches>
absl::Status RestoreMoved(TestedSampler& real, const SamplingCase& c,
                          const SamplerState& state) {
  SamplerState moved = state;
  moved.visited = std::max<int64_t>(0, moved.visited + kBatches * c.batch_size);
  return real.Restore(moved);
}

absl::Status StartAgain(TestedSampler& real, const SamplingCase& c,
                        const SamplerState& state) {
  if (state.world_size == c.world_size) return real.Restore(state);
  real.SetEpoch(state.epoch);
  return absl::OkStatus();
}

absl::Status KeepTheCount(TestedSampler& real, const SamplingCase& c,
                          const SamplerState& state) {
  SamplerState kept = state;
  kept.world_size = c.world_size;
  return real.Restore(kept);
}

absl::Status TakeAnyState(TestedSampler& real, const SamplingCase&,
                          const SamplerState& state) {
  real.Restore(state).IgnoreError();
  return absl::OkStatus();
}

// Accepts a state that the sampler refuses, if `takes` accepts the state's
// order and the sampler's.
template <typename Takes>
absl::Status TakeIf(TestedSampler& real, const SamplerState& state,
                    const Takes& takes) {
  const absl::Status status = real.Restore(state);
  LOCKSTEP_ASSIGN_OR_RETURN(const SamplerState here, real.State());
  return takes(state.order, here.order) ? absl::OkStatus() : status;
}

// Accepts any place in the sampler's own order.
absl::Status TakeAnyPlace(TestedSampler& real, const SamplingCase&,
                          const SamplerState& state) {
  return TakeIf(real, state, std::equal_to());
}

// Accepts a state of as many samples, if both orders are shuffled or neither
// is.
absl::Status TakeAnySeed(TestedSampler& real, const SamplingCase& c,
                         const SamplerState& state) {
  return TakeIf(real, state, [&c](const auto& order, const auto& here) {
    return order != here &&
           absl::StartsWith(order, absl::StrCat(c.dataset_size, " ")) &&
           absl::StrContains(order, "seed") == absl::StrContains(here, "seed");
  });
}

// Accepts a state of as many samples, if exactly one of the orders is shuffled.
absl::Status TakeAnyOrder(TestedSampler& real, const SamplingCase& c,
                          const SamplerState& state) {
  return TakeIf(real, state, [&c](const auto& order, const auto& here) {
    return absl::StartsWith(order, absl::StrCat(c.dataset_size, " ")) &&
           absl::StrContains(order, "in order") !=
               absl::StrContains(here, "in order");
  });
}

absl::Status RefuseWithoutSaying(TestedSampler& real, const SamplingCase&,
                                 const SamplerState& state) {
  if (real.Restore(state).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError("the state is wrong");
}

// After a refusal, moves to the end of the epoch. With kBack, moves back to the
// start once a batch is drawn.
template <bool kBack>
absl::Status MoveIfRefused(TestedSampler& real, const SamplingCase& c,
                           const SamplerState& state) {
  const absl::Status status = real.Restore(state);
  if (status.ok()) return status;
  LOCKSTEP_ASSIGN_OR_RETURN(SamplerState moved, real.State());
  if (kBack && moved.visited == 0) return status;
  moved.visited = kBack ? 0 : LengthOf(c, 0);
  LOCKSTEP_RETURN_IF_ERROR(real.Restore(moved));
  return status;
}

void KeepThePlace(TestedSampler& real,
                  const std::optional<SamplerState>& restored, int64_t epoch) {
  if (!restored.has_value()) return real.SetEpoch(epoch);
  SamplerState state = *restored;
  state.epoch = epoch;
  real.Restore(state).IgnoreError();
}

// Ignores a new epoch once a batch of the restored epoch is drawn.
void StayInABegunEpoch(TestedSampler& real,
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

// The following mutants resume from a state at another world size.
// Preconditions: not kPaddle, and nothing is dropped.

// Returns what one rank draws from the state on. One rank needs no padding.
std::vector<int64_t> RealRest(SamplingCase c, const SamplerState& state) {
  c.world_size = 1;
  c.batch_size = c.dataset_size;
  const auto sampler = MakeTestedSampler(c, 0).value();
  if (!sampler->Restore(state).ok()) return {};
  const Batches batches = DrawEpoch(*sampler).value();
  return batches.empty() ? std::vector<int64_t>() : batches[0];
}

// Deals the samples that are left, from their end.
Batches ReverseTheRest(const SamplingCase& c, int rank,
                       const SamplerState& state) {
  std::vector<int64_t> left = RealRest(c, state);
  std::reverse(left.begin(), left.end());
  return DealPart(c, PadOrCut(c, left), rank);
}

// Draws one index of padding too many on each rank.
Batches PadTheRestTwice(const SamplingCase& c, int rank,
                        const SamplerState& state) {
  std::vector<int64_t> order = PadOrCut(c, RealRest(c, state));
  const size_t n = order.size();
  for (int more = 0; n > 0 && more < c.world_size; ++more) {
    order.push_back(order[static_cast<size_t>(more) % n]);
  }
  return DealPart(c, order, rank);
}

}  // namespace

std::vector<SamplingMutant> ResumeMutants() {
  return {
      {{"SavesAnotherStateOnEachRank",
        "a state counts what this rank alone has visited", "States",
        "rank 1's state is"},
       {.shows = {HasSeveralRanks},
        .saves = [](SamplerState& state, int rank) { state.visited += rank; }}},
      {{"SavesNoEpoch", "a resumed epoch is the first", "Resume",
        "as if it were epoch 0"},
       {.shows = {IsShuffled},
        .saves = [](SamplerState& state, int) { state.epoch = 0; }}},
      {{"ForgetsWhatOthersVisited",
        "a second state has lost what was visited before the first", "Rescale",
        "as if only what the last ranks visited had been"},
       {.shows = {IsNotPaddle, KeepsAll,
                  [](const SamplingCase& c) { return StepsOf(c) >= 6; }},
        .saves = ForgetWhatOthersVisited}},
      {{"RepeatsABatch", "a batch that was drawn before the stop comes again",
        "Resume", "as if a batch came again"},
       {.shows = {[](const SamplingCase& c) {
          return LengthOf(c, 0) > c.batch_size;
        }},
        .restores = RestoreMoved<-1>}},
      {{"SkipsABatch", "the first batch after the stop does not come", "Resume",
        "as if a batch were skipped"},
       {.shows = {[](const SamplingCase& c) {
          return LengthOf(c, c.world_size - 1) >= c.batch_size;
        }},
        .restores = RestoreMoved<1>}},
      {{"StartsAgainAtAnotherWorldSize",
        "ranks of another number begin the epoch anew", "Rescale",
        "as if the epoch began anew"},
       {.shows = {KeepsAll}, .restores = StartAgain}},
      {{"KeepsTheCountAtAnotherWorldSize",
        "as many samples of each rank are taken as visited, of whatever "
        "number of ranks",
        "Rescale", "ranks had visited as many as each of 1"},
       {// If there is padding, the check finds that first.
        .shows = {IsExact, KeepsLast,
                  [](const SamplingCase& c) {
                    return c.world_size == 1 &&
                           c.dataset_size >= 4 * c.batch_size;
                  }},
        .restores = KeepTheCount}},
      {{"ReversesTheRest",
        "at another world size, what is left is dealt from its end", "Rescale",
        "those that were left, in another order"},
       {.shows = {IsNotPaddle, KeepsAll, HasSeveralSamples},
        .draws_remaining = ReverseTheRest}},
      {{"PadsTheRestTwice",
        "at another world size, each rank gets one padding index more",
        "Rescale", "indices are drawn twice, padding is at most"},
       {.shows = {IsNotPaddle, KeepsAll}, .draws_remaining = PadTheRestTwice}},
      {{"KeepsItsPlaceInTheNextEpoch",
        "an epoch set after a restored one begins where that did", "NextEpoch",
        "where the one before was stopped"},
       {.sets_epoch = KeepThePlace}},
      {{"StaysInABegunEpoch",
        "no epoch can be set once a batch is drawn after a state", "NextEpoch",
        "as if it were still epoch 1"},
       {.shows = {IsShuffled}, .sets_epoch = StayInABegunEpoch}},
      {{"TakesAnyState",
        "a state that is impossible or of another order is taken", "BadStates",
        "a state of another data set is not refused"},
       {.restores = TakeAnyState}},
      {{"TakesAnyPlace",
        "a state of this order is taken though its place is impossible",
        "BadStates", "a state of before=-1 is not refused"},
       {.restores = TakeAnyPlace}},
      {{"TakesAnyOrder",
        "a state in order is taken for a shuffled one, and the reverse",
        "BadStates", "a state of another order is not refused"},
       {.restores = TakeAnyOrder}},
      {{"TakesAnySeed", "a state of another seed's order is taken", "BadStates",
        "a state of another seed is not refused"},
       {.shows = {IsNotPaddle,
                  [](const SamplingCase& c) {
                    return c.shuffle != Shuffle::kNone;
                  }},
        .restores = TakeAnySeed}},
      {{"RefusesWithoutSaying",
        "a state is refused, but not by what is wrong with it", "BadStates",
        "is refused without saying"},
       {.restores = RefuseWithoutSaying}},
      {{"MovesFromABatchOnARefusedState",
        "a state that is refused ends the epoch that was being drawn",
        "BadStates", "is refused after a batch, the sampler is not as it was"},
       {.shows = {[](const SamplingCase& c) { return StepsOf(c) > 1; }},
        .restores = MoveIfRefused<true>}},
      {{"MovesOnARefusedState",
        "a state that is refused moves the sampler all the same", "BadStates",
        "is refused, the sampler is not as it was"},
       {.restores = MoveIfRefused<false>}},
  };
}

}  // namespace lockstep::conformance
