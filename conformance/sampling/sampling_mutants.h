// Mutants of samplers, which the checks of samplers must reject.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_MUTANTS_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_MUTANTS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "conformance/mutant.h"
#include "conformance/sampling/tested_sampler.h"
#include "sampler/sampler.h"

namespace lockstep::conformance {

// A change to the samplers of MakeTestedSampler. A null hook changes nothing.
struct SamplingMutation {
  // The mutant must be rejected in a case for which all of these are true.
  std::vector<bool (*)(const SamplingCase& c)> shows = {};
  bool ShowsIn(const SamplingCase& c) const;

  // Changes the case and the rank that the sampler receives.
  void (*told)(SamplingCase& c, int& rank) = nullptr;
  // Draws the epoch in place of the sampler.
  Batches (*draws)(const SamplingCase& c, int rank, int64_t epoch) = nullptr;
  // Draws in place of the sampler, from a state of another world size on.
  Batches (*draws_remaining)(const SamplingCase& c, int rank,
                             const SamplerState& state) = nullptr;
  // Whether the sampler returns empty batches endlessly after the last batch.
  bool never_ends = false;
  // Replaces the result of num_batches().
  int64_t (*says_batches)(int64_t batches) = nullptr;
  // Changes the state that the sampler saves.
  void (*saves)(SamplerState& state, int rank) = nullptr;
  // Replaces Restore.
  absl::Status (*restores)(TestedSampler& real, const SamplingCase& c,
                           const SamplerState& state) = nullptr;
  // Replaces SetEpoch. `restored` is the state of the last Restore, if any.
  void (*sets_epoch)(TestedSampler& real,
                     const std::optional<SamplerState>& restored,
                     int64_t epoch) = nullptr;
  // Whether rank 0 also exchanges the first two indices of its first batch, so
  // that no cause gives every index in its place.
  bool swaps = false;
};

struct SamplingMutant {
  Mutant mutant;  // Does not belong to a suite yet.
  SamplingMutation mutation;
};

// Returns a factory of samplers with the mutation, which it copies.
SamplerFactory MakeMutated(const SamplingMutation& mutation);

// Returns a part of the grid: sizes that divide each other, that do not, and
// that are below each other. CheckSampler must reject a mutant in each of these
// cases in which it must show. A slice tries only some of them.
std::vector<SamplingCase> SamplingMutantCases();

// Conditions for `shows`.
inline bool IsPaddle(const SamplingCase& c) {
  return c.semantics == Semantics::kPaddle;
}
inline bool IsNotPaddle(const SamplingCase& c) { return !IsPaddle(c); }
inline bool IsExact(const SamplingCase& c) {
  return c.semantics == Semantics::kExact;
}
// Enough samples that no two orders match by chance.
inline bool IsShuffled(const SamplingCase& c) {
  return c.shuffle != Shuffle::kNone && c.dataset_size >= kManySamples;
}
inline bool HasSeveralRanks(const SamplingCase& c) { return c.world_size > 1; }
inline bool HasSeveralSamples(const SamplingCase& c) {
  return c.dataset_size > 1;
}
inline bool KeepsLast(const SamplingCase& c) { return !c.drop_last; }
inline bool KeepsAll(const SamplingCase& c) {
  return !c.drop_last && !c.drop_tail;
}

// Returns the batches of a rank if `order` is dealt. For the hooks that draw.
Batches DealPart(const SamplingCase& c, const std::vector<int64_t>& order,
                 int rank);

// Sets a member of the case. For `told`.
template <auto kMember, auto kValue>
void Set(SamplingCase& c, int&) {
  c.*kMember = kValue;
}

// Returns all mutants, those of guards included, with their functions.
std::vector<SamplingMutant> AllSamplingMutants();
MutantSuite SamplingMutants();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_MUTANTS_H_
