// Mutants of samplers: what the checks of samplers must reject.
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

// What is done to the samplers of MakeTestedSampler. The hooks that are null
// change nothing.
struct SamplingMutation {
  // The mutant must be rejected in a case of which all of these are true.
  std::vector<bool (*)(const SamplingCase& c)> shows = {};
  bool ShowsIn(const SamplingCase& c) const;

  // What the sampler is told instead.
  void (*told)(SamplingCase& c, int& rank) = nullptr;
  // What it draws instead.
  Batches (*draws)(const SamplingCase& c, int rank, int64_t epoch) = nullptr;
  // The same, from a state of another world size on.
  Batches (*draws_rest)(const SamplingCase& c, int rank,
                        const SamplerState& state) = nullptr;
  // Whether empty batches come for ever after the last.
  bool never_ends = false;
  // What num_batches() says instead.
  int64_t (*says_batches)(int64_t batches) = nullptr;
  // What it saves instead.
  void (*saves)(SamplerState& state, int rank) = nullptr;
  // What Restore does instead, ...
  absl::Status (*restores)(TestedSampler& real, const SamplingCase& c,
                           const SamplerState& state) = nullptr;
  // ... and SetEpoch, where it was restored or not.
  void (*sets_epoch)(TestedSampler& real,
                     const std::optional<SamplerState>& restored,
                     int64_t epoch) = nullptr;
  // Whether rank 0 also exchanges the first two indices of its first batch, so
  // that no cause gives every index in its place.
  bool swaps = false;
};

struct SamplingMutant {
  Mutant mutant;  // Not yet of a suite.
  SamplingMutation mutation;
};

// Makes samplers with the mutation, which they keep a copy of.
SamplerFactory MakeMutated(const SamplingMutation& mutation);

// A part of the grid: sizes that divide each other, that do not, and that are
// below each other. In each of these cases (in a slice, in some) in which it
// must show, CheckSampler must reject a mutant.
std::vector<SamplingCase> SamplingMutantCases();

// For `shows`.
inline bool IsPaddle(const SamplingCase& c) {
  return c.semantics == Semantics::kPaddle;
}
inline bool IsNotPaddle(const SamplingCase& c) { return !IsPaddle(c); }
inline bool IsExact(const SamplingCase& c) {
  return c.semantics == Semantics::kExact;
}
// Enough samples for no two orders to be alike by chance.
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

// For what they draw instead: the batches of a rank that is dealt that order.
Batches DealPart(const SamplingCase& c, const std::vector<int64_t>& order,
                 int rank);

// For `told`.
template <auto kMember, auto kValue>
void Set(SamplingCase& c, int&) {
  c.*kMember = kValue;
}

// In whole epochs and in states; not yet with how they are planted.
std::vector<SamplingMutant> EpochMutants();
std::vector<SamplingMutant> ResumeMutants();
// These, and those in what is refused (guards).
std::vector<SamplingMutant> AllSamplingMutants();
MutantSuite SamplingMutants();

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_MUTANTS_H_
