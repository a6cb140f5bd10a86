// The cases that samplers are tested in, the properties that they must have,
// and the tested sampler: one of sampler/, or any other behind the same
// functions.
#ifndef LOCKSTEP_CONFORMANCE_SAMPLING_TESTED_SAMPLER_H_
#define LOCKSTEP_CONFORMANCE_SAMPLING_TESTED_SAMPLER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "conformance/mutant.h"
#include "sampler/sampler.h"

namespace lockstep::conformance {

enum class Semantics {
  kTorch,   // PyTorch's DistributedSampler.
  kPaddle,  // Paddle's DistributedBatchSampler.
  kExact,   // PyTorch's sampler without padding: each sample once.
};

enum class Shuffle {
  kNone,   // 0, 1, 2, ...
  kOwn,    // The shuffle of PyTorch or Paddle.
  kKeyed,  // In O(1) memory. kPaddle does not support it.
};

// The options of a group's ranks, which are equal on all ranks.
struct SamplingCase {
  Semantics semantics = Semantics::kTorch;
  Shuffle shuffle = Shuffle::kNone;
  // Cuts the end of the order if the world size does not divide it: PyTorch's
  // drop_last. Only for kTorch.
  bool drop_tail = false;
  // Leaves the last step out unless every rank has a full batch for it.
  bool drop_last = false;
  int64_t dataset_size = 1;
  int world_size = 1;
  int64_t batch_size = 1;  // The batch size of one rank.
  int64_t seed = 42;       // Not used by kPaddle.
  // The effect of a second draw without SetEpoch. Without a value, kPaddle
  // draws the next epoch and the other semantics refuse.
  std::optional<RepeatedDraw> repeated_draw = std::nullopt;
};

inline constexpr int64_t kMaxDatasetSize = 40;
inline constexpr int kMaxSamplingRanks = 9;
inline constexpr int64_t kMaxBatchSize = 7;
// From so many samples on, no two orders of the suite match by chance. Because
// seeds are fixed, they match always or never.
inline constexpr int64_t kManySamples = 10;

// Returns every semantics x shuffle x drop_tail x drop_last. The sizes are not
// set.
std::vector<SamplingCase> SamplingKinds();

// Returns "torch", "paddle" or "exact".
const char* Name(Semantics semantics);

// Returns, for example, "TorchKeyedDropTail", for the names of tests.
std::string KindName(const SamplingCase& kind);

// Prints a failing test's parameter, which is a kind.
void PrintTo(const SamplingCase& kind, std::ostream* out);

// Returns, for example, "torch, keyed shuffle, drop_tail, n=11 P=2 B=3".
std::string ToString(const SamplingCase& c);

// Returns the kinds at these sizes, in every combination.
std::vector<SamplingCase> CasesOf(std::span<const SamplingCase> kinds,
                                  std::span<const int64_t> dataset_sizes,
                                  std::span<const int> world_sizes,
                                  std::span<const int64_t> batch_sizes);

// Returns the kind at every data set size x batch size up to the largest, at
// one world size.
std::vector<SamplingCase> CasesAt(const SamplingCase& kind, int world_size);

// Returns the case of one rank that draws everything that the ranks of `c` are
// dealt.
SamplingCase OneRank(SamplingCase c);

// The properties of whole epochs and of states, in the order of the checks.
// Each is a name that a failure may have.
inline constexpr const char* kSamplingProperties[] = {
    "Guards",       "Batches", "Lengths",      "Disjointness", "Coverage",
    "Padding",      "Deal",    "EpochsDiffer", "SeedsDiffer",  "Order",
    "RepeatedDraw",  // The last property of whole epochs.
    "States",       "Resume",  "Rescale",      "NextEpoch",    "BadStates"};
using SamplingProperty = NameIn<kSamplingProperties>;

using Batches = std::vector<std::vector<int64_t>>;  // Of one rank, by step.

// A sampler of one rank's batches. The contract of each function is that of
// BatchSampler. An adapter of this class lets the suite test any sampler.
class TestedSampler {
 public:
  virtual ~TestedSampler() = default;

  virtual void SetEpoch(int64_t epoch) = 0;
  virtual absl::Status BeginEpoch() = 0;
  virtual std::optional<std::vector<int64_t>> NextBatch() = 0;
  virtual int64_t num_batches() const = 0;
  virtual absl::StatusOr<SamplerState> State() const = 0;
  virtual absl::Status Restore(const SamplerState& state) = 0;
};

// Creates the sampler of a rank, before its first epoch.
using SamplerFactory =
    std::function<absl::StatusOr<std::unique_ptr<TestedSampler>>(
        const SamplingCase& c, int rank)>;

// Creates a BatchSampler over DistributedSampler or PaddleSampler. Errors:
// those of these classes.
absl::StatusOr<std::unique_ptr<TestedSampler>> MakeTestedSampler(
    const SamplingCase& c, int rank);

// Begins the epoch and draws all of its batches. Errors: the sampler's, and
// those of CheckEnds.
absl::StatusOr<Batches> DrawEpoch(TestedSampler& sampler);

// Adds the remaining batches of an epoch. Errors: those of CheckEnds.
absl::Status DrawRemaining(TestedSampler& sampler, Batches& batches);

// Checks the number of batches. Errors: kDataLoss for "Batches" if there are
// more than in any epoch of the suite.
absl::Status CheckEnds(const Batches& batches);

// Draws the epoch from its start on each rank of the case. Errors: also the
// factory's. The message names the case and the rank.
absl::StatusOr<std::vector<Batches>> DrawRanks(const SamplerFactory& make,
                                               const SamplingCase& c,
                                               int64_t epoch);

// Returns the first place where the ranks' batches are wrong, for example "rank
// 0, step 1: draws 3 4, wanted 3 5".
std::optional<std::string> FirstDifference(const std::vector<Batches>& got,
                                           const std::vector<Batches>& want);
std::optional<std::string> FirstDifference(const Batches& got,
                                           const Batches& want, int rank);

// Adds the case and the rank to an error: before its message, or after that of
// a kDataLoss, which starts with a property. OK stays OK.
absl::Status At(const SamplingCase& c, int rank, const absl::Status& status);

// Return the kDataLoss of a sampler that breaks a property. Every such error is
// made here. The second function omits the case, which the caller adds with
// At().
absl::Status PropertyError(SamplingProperty property, const SamplingCase& c,
                           const std::string& how);
absl::Status PropertyError(SamplingProperty property, const std::string& how);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_TESTED_SAMPLER_H_
