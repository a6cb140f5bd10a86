// The interface of every sampler for the code that trains with it, the indices
// that a sampler draws, and the state from which it resumes.
#ifndef LOCKSTEP_SAMPLER_SAMPLER_H_
#define LOCKSTEP_SAMPLER_SAMPLER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sampler/keyed_permutation.h"
#include "sampler/shard.h"

namespace lockstep {

// The indices that a rank draws for an epoch. They are either a list in memory,
// or computed in O(1) memory when they are read. Immutable, thread safe.
class EpochIndices {
 public:
  explicit EpochIndices(std::vector<int64_t> list) : list_(std::move(list)) {}

  // Holds the positions of `part`, or the elements of `permutation` at these
  // positions.
  explicit EpochIndices(
      const StridedPart& part,
      const std::optional<KeyedPermutation>& permutation = std::nullopt)
      : part_(part), permutation_(permutation) {}

  int64_t size() const {
    return part_ ? part_->count : static_cast<int64_t>(list_.size());
  }

  // Fills `out` with the entries [first, first + out.size()). Precondition: the
  // entries are in [0, size()). out: host int64, overwritten, borrowed. Cost:
  // O(out.size()).
  void Read(int64_t first, std::span<int64_t> out) const;

  // Returns all entries, without a copy if they are in memory. Errors:
  // kResourceExhausted if the entries are computed and are more than 2^31 - 1.
  absl::StatusOr<std::vector<int64_t>> TakeAll() &&;

 private:
  std::vector<int64_t> list_;  // Empty if the indices are computed.
  std::optional<StridedPart> part_;
  std::optional<KeyedPermutation> permutation_;
};

// A place in an epoch, to be kept with a checkpoint; the same on every rank. An
// epoch may begin at one world size and continue at another. The earlier ranks
// have together visited the first `before` samples of its order. Since then,
// each of the present ranks has visited `visited` samples.
struct SamplerState {
  std::string order;  // The name of the order, as the sampler words it.
  int64_t epoch = 0;
  int64_t first_world_size = 1;  // The ranks that the epoch began with, if its
                                 // order depends on them (Paddle's).
  int64_t before = 0;
  int64_t world_size = 1;  // The number of present ranks.
  int64_t batch_size = 1;  // The ranks get blocks of so many samples.
  int64_t visited = 0;

  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

// Returns one line of JSON, whose keys are the names above.
std::string ToJson(const SamplerState& state);

// Parses the text that ToJson writes. Errors: kInvalidArgument, naming the key,
// for any other text. Restore checks whether the numbers make sense.
absl::StatusOr<SamplerState> SamplerStateFromJson(absl::string_view json);

// One rank's view of the samples that an epoch visits, and of their order.
// Ranks never communicate about it: samplers that differ only in the rank and
// are at the same epoch agree by construction. Not thread safe.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Selects the epoch that is drawn next, from its start. Every rank must set
  // the same epoch. Without a call, the first draw is of epoch 0.
  virtual void SetEpoch(int64_t epoch) = 0;

  // Returns this rank's sample indices of the epoch, in the order in which the
  // rank visits them. Errors: kFailedPrecondition for a second draw if an epoch
  // may be drawn only once (RepeatedDraw); the sampler's own.
  virtual absl::StatusOr<std::vector<int64_t>> Indices() = 0;
};

// The effect of a second draw if SetEpoch was not called since the first.
enum class RepeatedDraw {
  kRefuse,   // Returns kFailedPrecondition: most likely the call was forgotten,
             // and every epoch would have the same order. An order that does
             // not depend on the epoch may be drawn again.
  kAdvance,  // Draws the next epoch, as Paddle's sampler does.
  kAllow,    // Draws the same epoch again, from its start.
};

// The numbers of samples that ranks have left in an epoch.
struct SampleCounts {
  int64_t own = 0;     // The number of this rank.
  int64_t fewest = 0;  // The smallest number of any rank.
  int64_t most = 0;    // The largest number of any rank.

  friend bool operator==(const SampleCounts&, const SampleCounts&) = default;
};

// A sampler that can stop in the middle of an epoch and continue later, in
// another process and at another world size.
class ResumableSampler : public Sampler {
 public:
  // Returns the epoch that was set, restored or drawn last.
  virtual int64_t epoch() const = 0;

  // Returns how many samples of that epoch were left when it was set or
  // restored: the lengths of the lists that Draw returns on the ranks. Cost:
  // O(1).
  virtual SampleCounts Counts() const = 0;

  // Returns the same as Indices, without holding in memory indices that can be
  // computed.
  virtual absl::StatusOr<EpochIndices> Draw() = 0;

  // Returns the result of Draw as a list. Errors: also kResourceExhausted above
  // 2^31 - 1 indices.
  absl::StatusOr<std::vector<int64_t>> Indices() override;

  // Returns the state after every rank has visited the first `visited` of the
  // indices that Draw returned to it (all, if it has fewer). The state is the
  // same on every rank, so the copy of any rank resumes all. Errors:
  // kInvalidArgument if visited < 0, or if all ranks cannot stop together at
  // that place.
  virtual absl::StatusOr<SamplerState> StateAfter(int64_t visited) const = 0;

  // Continues from a state of a sampler with the same data set, order and seed,
  // at the state's world size or another. At the same world size, Draw then
  // returns exactly the indices that were left. At another, the samples that no
  // rank had visited are dealt to the present ranks. Errors: kInvalidArgument
  // if the state is of another order or impossible; the sampler is then
  // unchanged.
  virtual absl::Status Restore(const SamplerState& state) = 0;
};

// Code that samplers share: checks of their options, and the place from which
// they draw.

// Returns kInvalidArgument unless the size is in [1, most].
absl::Status CheckDatasetSize(int64_t dataset_size, int64_t most);

// Returns kInvalidArgument unless world_size >= 1 and rank is in [0,
// world_size).
absl::Status CheckRankInWorld(int rank, int world_size);

// Returns kInvalidArgument unless the batch size is at least 1.
absl::Status CheckBatchSize(int64_t batch_size);

// The common part of samplers. Keeps the place and the epoch that are drawn
// next.
class EpochSampler : public ResumableSampler {
 public:
  void SetEpoch(int64_t epoch) override;
  int64_t epoch() const override { return place_.epoch; }

 protected:
  // `start` is the state at the start of epoch 0. `shuffle` tells whether the
  // order depends on the epoch.
  EpochSampler(SamplerState start, bool shuffle, RepeatedDraw repeated_draw);

  // Moves to a place that was checked.
  void SetPlace(const SamplerState& state);

  // Must be called by each draw, which then starts at place(). Errors:
  // kFailedPrecondition for a second draw under kRefuse.
  absl::Status BeginDraw();

  // Returns the epoch of the next draw.
  int64_t next_epoch() const;

  const SamplerState& start() const { return start_; }
  const SamplerState& place() const { return place_; }

 private:
  SamplerState start_;
  SamplerState place_;
  RepeatedDraw repeated_draw_;
  bool drawn_ = false;  // Whether the epoch of place_ was drawn.
};

// Checks whether a sampler that starts at `start` can continue from `state`.
// Errors: kInvalidArgument, naming both orders if they differ, or the number
// that is out of range and its range.
absl::Status CheckState(const SamplerState& state, const SamplerState& start,
                        int64_t dataset_size);

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_SAMPLER_H_
