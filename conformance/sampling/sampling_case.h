// The epochs that the conformance suite asks samplers for.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_CASE_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_CASE_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "sampler/sampler.h"

namespace lockstep {

enum class Semantics {
  kTorch,   // PyTorch's DistributedSampler.
  kPaddle,  // Paddle's DistributedBatchSampler.
  kExact,   // The first without padding: each sample once.
};

enum class Shuffle {
  kNone,   // 0, 1, 2, ...
  kOwn,    // As PyTorch or Paddle does.
  kKeyed,  // In O(1) memory; not of kPaddle.
};

// What the ranks of a group are told, all the same.
struct SamplingCase {
  Semantics semantics = Semantics::kTorch;
  Shuffle shuffle = Shuffle::kNone;
  // The end of the order that does not go round the ranks is cut: PyTorch's
  // drop_last. Of kTorch alone.
  bool drop_tail = false;
  // The last step is left out unless every rank has a whole batch for it.
  bool drop_last = false;
  int64_t dataset_size = 1;
  int world_size = 1;
  int64_t batch_size = 1;  // Of one rank.
  int64_t seed = 42;       // Not of kPaddle.
  // Of a second draw without SetEpoch; else what the semantics do: kPaddle
  // draws the next epoch, the others refuse.
  std::optional<RepeatedDraw> repeated_draw = std::nullopt;
};

inline constexpr int64_t kMaxDatasetSize = 40;
inline constexpr int kMaxSamplingRanks = 9;
inline constexpr int64_t kMaxBatchSize = 7;
// From so many samples on, no two orders of the suite are alike by chance; as
// seeds are fixed, that holds always or never.
inline constexpr int64_t kManySamples = 10;

// Every semantics x shuffle x drop_tail x drop_last; the numbers are not set.
std::vector<SamplingCase> SamplingKinds();

// "torch", "paddle" or "exact".
const char* Name(Semantics semantics);

// "TorchKeyedDropTail", for the names of tests.
std::string KindName(const SamplingCase& kind);

// How a failing test shows its parameter, a kind.
void PrintTo(const SamplingCase& kind, std::ostream* out);

// "torch, keyed shuffle, drop_tail, n=11 P=2 B=3".
std::string ToString(const SamplingCase& c);

// The kind at every data set size x batch size up to the largest, at one world
// size.
std::vector<SamplingCase> CasesAt(SamplingCase kind, int world_size);

// The kinds at these sizes, in every combination.
std::vector<SamplingCase> CasesOf(std::span<const int64_t> dataset_sizes,
                                  std::span<const int> world_sizes,
                                  std::span<const int64_t> batch_sizes);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_SAMPLING_CASE_H_
