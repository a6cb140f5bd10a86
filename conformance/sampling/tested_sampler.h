// The cases that samplers are tried on, what is asked of them, and the sampler
// that is tested: those of sampler/, or any other behind the same functions.
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

// The kinds at these sizes, in every combination.
std::vector<SamplingCase> CasesOf(std::span<const SamplingCase> kinds,
                                  std::span<const int64_t> dataset_sizes,
                                  std::span<const int> world_sizes,
                                  std::span<const int64_t> batch_sizes);

// The kind at every data set size x batch size up to the largest, at one world
// size.
std::vector<SamplingCase> CasesAt(const SamplingCase& kind, int world_size);

// The case of one rank that draws all that its ranks are dealt.
SamplingCase OneRank(SamplingCase c);

// What is asked of whole epochs and of states, in this order: the names that a
// failure may have.
inline constexpr const char* kSamplingProperties[] = {
    "Guards",       "Batches", "Lengths",      "Disjointness", "Coverage",
    "Padding",      "Deal",    "EpochsDiffer", "SeedsDiffer",  "Order",
    "RepeatedDraw",  // Of whole epochs.
    "States",       "Resume",  "Rescale",      "NextEpoch",    "BadStates"};
using SamplingProperty = NameIn<kSamplingProperties>;

using Batches = std::vector<std::vector<int64_t>>;  // Of one rank, by step.

// One rank's batches; the contract of each function is BatchSampler's. An
// adapter of this class holds any sampler to the suite.
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

// Makes the sampler of a rank, before its first epoch.
using SamplerFactory =
    std::function<absl::StatusOr<std::unique_ptr<TestedSampler>>(
        const SamplingCase& c, int rank)>;

// BatchSampler over DistributedSampler or PaddleSampler. Errors: theirs.
absl::StatusOr<std::unique_ptr<TestedSampler>> MakeTestedSampler(
    const SamplingCase& c, int rank);

// Begins the epoch and takes all of its batches. Errors: the sampler's, and
// CheckEnds'.
absl::StatusOr<Batches> DrawEpoch(TestedSampler& sampler);

// Adds the batches that are left of an epoch. Errors: CheckEnds'.
absl::Status DrawRest(TestedSampler& sampler, Batches& batches);

// Errors: kDataLoss, of Batches, if there are more than any epoch of the suite
// has.
absl::Status CheckEnds(const Batches& batches);

// The same by each rank of the case, from the start of the epoch. Errors: also
// the factory's; the message names the case and the rank.
absl::StatusOr<std::vector<Batches>> DrawRanks(const SamplerFactory& make,
                                               const SamplingCase& c,
                                               int64_t epoch);

// Where the ranks' batches are first not the wanted ones, as "rank 0, step 1:
// draws 3 4, wanted 3 5".
std::optional<std::string> FirstDifference(const std::vector<Batches>& got,
                                           const std::vector<Batches>& want);
std::optional<std::string> FirstDifference(const Batches& got,
                                           const Batches& want, int rank);

// The error with the case and the rank before its message, or behind that of a
// kDataLoss, which starts with a property; OK stays OK.
absl::Status At(const SamplingCase& c, int rank, const absl::Status& status);

// The kDataLoss of a sampler that breaks a property: the only way to make one.
// The second is of a case that the caller adds, with At().
absl::Status Breaks(SamplingProperty property, const SamplingCase& c,
                    const std::string& how);
absl::Status Breaks(SamplingProperty property, const std::string& how);

using Lists = std::vector<std::vector<int64_t>>;  // One of indices per rank.

// How many entries make the data set a multiple of the world size where it is
// padded; else 0.
int64_t PaddingOf(const SamplingCase& c);

// How many indices a rank draws in an epoch before batches are dropped.
int64_t LengthOf(const SamplingCase& c, int rank);

// The steps of an epoch; none if drop_tail or drop_last leaves nothing, which
// samplers refuse.
int64_t StepsOf(const SamplingCase& c);

// The order of an epoch: of the samples (kTorch, kExact), or of the padded
// data set (kPaddle, which pads first). Precondition: no keyed shuffle, which
// is defined by its own code.
std::vector<int64_t> ReferenceOrder(const SamplingCase& c, int64_t epoch);

// `order` as it is dealt: padded from its start, round and round, or cut, to a
// multiple of the world size; or as it is (kExact).
std::vector<int64_t> PadOrCut(const SamplingCase& c,
                              const std::vector<int64_t>& order);

// Deals an order that PadOrCut gave: in turn, one by one; or a batch at a time,
// and the tail in equal parts (kPaddle).
Lists Deal(const SamplingCase& c, const std::vector<int64_t>& order);

// Cuts each rank's list into batches, of all ranks the same number.
std::vector<Batches> Cut(const SamplingCase& c, const Lists& lists);

// A place in an epoch, as the definition of resuming has it.
class EpochPlace {
 public:
  // Where the ranks of the case begin an epoch of that order.
  EpochPlace(const SamplingCase& c, int64_t epoch,
             const std::vector<int64_t>& order);

  // What these ranks draw from here on.
  std::vector<Batches> Rest() const;

  // Where they are after so many steps.
  EpochPlace After(int64_t steps) const;

  // Whether ranks of that case go on with what these were dealt, padding and
  // all, instead of dealing what is left anew.
  bool IsContinuedBy(const SamplingCase& c) const;

  // Where ranks of that case go on from here. At the start of an epoch they
  // begin their own.
  EpochPlace TakenOverBy(const SamplingCase& c) const;

  // The samples that nobody has visited, in the order they had, each once.
  std::vector<int64_t> Unvisited() const;

 private:
  SamplingCase case_;
  int64_t epoch_;
  std::vector<int64_t> order_;  // Unvisited when these ranks took over.
  Lists dealt_;                 // Of it.
  int64_t visited_ = 0;         // By each rank since.
};

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_SAMPLING_TESTED_SAMPLER_H_
