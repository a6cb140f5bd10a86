// What every sampler is to the code that trains with it: the interface, the
// indices that it draws, and the state to resume from.
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

// The indices that a rank draws for an epoch: a list that is either held in
// memory, or computed in O(1) memory when it is read. Immutable, thread safe.
class EpochIndices {
 public:
  explicit EpochIndices(std::vector<int64_t> list) : list_(std::move(list)) {}

  // The positions of `part`, or what `permutation` has at them.
  explicit EpochIndices(
      const StridedPart& part,
      const std::optional<KeyedPermutation>& permutation = std::nullopt)
      : part_(part), permutation_(permutation) {}

  int64_t size() const {
    return part_ ? part_->count : static_cast<int64_t>(list_.size());
  }

  // Fills `out` with the entries [first, first + out.size()). Precondition:
  // they are in [0, size()). out: host int64, overwritten, borrowed.
  // Cost: O(out.size()).
  void Read(int64_t first, std::span<int64_t> out) const;

  // All entries; without a copy if they are in memory. Errors:
  // kResourceExhausted if they are computed and more than 2^31 - 1.
  absl::StatusOr<std::vector<int64_t>> TakeAll() &&;

 private:
  std::vector<int64_t> list_;  // Empty if the indices are computed.
  std::optional<StridedPart> part_;
  std::optional<KeyedPermutation> permutation_;
};

// A place in an epoch, to be kept with a checkpoint; the same on every rank. An
// epoch may begin at one world size and go on at another: the ranks that left
// have visited the first `before` samples of its order together, and then each
// rank there is now has visited `visited`.
struct SamplerState {
  std::string order;  // Which order it is a place in, as the sampler words it.
  int64_t epoch = 0;
  int64_t first_world_size = 1;  // The ranks that the epoch began with, where
                                 // its order depends on them (Paddle's).
  int64_t before = 0;
  int64_t world_size = 1;  // The ranks there are now.
  int64_t batch_size = 1;  // The samples are dealt to them in such blocks.
  int64_t visited = 0;

  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

// One line of JSON, whose keys are the names above.
std::string ToJson(const SamplerState& state);

// Errors: kInvalidArgument, naming the key, if the text is not what ToJson
// writes. Whether the numbers make sense is Restore's to check.
absl::StatusOr<SamplerState> SamplerStateFromJson(absl::string_view json);

// One rank's view of which samples an epoch visits, and in which order. Ranks
// never talk to each other about it: samplers that were created alike, but for
// the rank, and given the same epoch agree by construction. Not thread safe.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Chooses the epoch that is drawn next, from its start. Every rank must set
  // the same one; without a call the first draw is of epoch 0.
  virtual void SetEpoch(int64_t epoch) = 0;

  // This rank's sample indices of the epoch, in the order in which it visits
  // them. Errors: kFailedPrecondition where an epoch may be drawn only once
  // (RepeatedDraw); the sampler's own.
  virtual absl::StatusOr<std::vector<int64_t>> Indices() = 0;
};

// What a second draw does when no SetEpoch came since the first.
enum class RepeatedDraw {
  kRefuse,   // kFailedPrecondition: the call was forgotten, most likely, and
             // every epoch would have the same order. An order that does not
             // depend on the epoch may be drawn again.
  kAdvance,  // Draws the next epoch, as Paddle's sampler does.
  kAllow,    // Draws the same epoch again, from its start.
};

// How many samples the ranks have left in an epoch.
struct SampleCounts {
  int64_t own = 0;     // This rank.
  int64_t fewest = 0;  // The rank with the fewest, and
  int64_t most = 0;    // the one with the most.

  friend bool operator==(const SampleCounts&, const SampleCounts&) = default;
};

// A sampler that can stop in the middle of an epoch and go on later, in another
// process and at another world size.
class ResumableSampler : public Sampler {
 public:
  // The epoch that was set, restored or drawn last.
  virtual int64_t epoch() const = 0;

  // What was left of that epoch when it was set or restored: the lengths of the
  // lists that Draw gives the ranks. Cost: O(1).
  virtual SampleCounts Counts() const = 0;

  // As Indices, without holding in memory what can be computed.
  virtual absl::StatusOr<EpochIndices> Draw() = 0;

  // Draw, in memory. Errors: also kResourceExhausted above 2^31 - 1 indices.
  absl::StatusOr<std::vector<int64_t>> Indices() override;

  // The state once every rank has visited the first `visited` of the indices
  // that Draw gave it (all, if it has fewer). The same on every rank, so any
  // rank's copy resumes all. Errors: kInvalidArgument if visited < 0, or if it
  // is no place where all ranks can stop together.
  virtual absl::StatusOr<SamplerState> StateAfter(int64_t visited) const = 0;

  // Goes on from a state that a sampler of the same data set, order and seed
  // gave, at this or another world size. At the same one Draw then gives
  // exactly what was left; at another, the samples that no rank had visited are
  // dealt to the ranks there are now. Errors: kInvalidArgument if the state is
  // of another order or impossible; the sampler is then as before.
  virtual absl::Status Restore(const SamplerState& state) = 0;
};

// What samplers share: checks of their options, and the place they draw from.

// kInvalidArgument unless the size is in [1, most].
absl::Status CheckDatasetSize(int64_t dataset_size, int64_t most);

// kInvalidArgument unless world_size >= 1 and rank is in [0, world_size).
absl::Status CheckRankInWorld(int rank, int world_size);

// kInvalidArgument unless the batch size is at least 1.
absl::Status CheckBatchSize(int64_t batch_size);

// The common part of samplers: which place of which epoch is drawn next.
class EpochSampler : public ResumableSampler {
 public:
  void SetEpoch(int64_t epoch) override;
  int64_t epoch() const override { return place_.epoch; }

 protected:
  // `start` is the state at the start of epoch 0; `shuffle` is whether the
  // order depends on the epoch.
  EpochSampler(SamplerState start, bool shuffle, RepeatedDraw repeated_draw);

  // Goes to a place that was checked.
  void GoTo(const SamplerState& state);

  // To be called by each draw: where it starts is then place(). Errors:
  // kFailedPrecondition for a second draw under kRefuse.
  absl::Status BeginDraw();

  // The epoch that the next draw is of.
  int64_t next_epoch() const;

  const SamplerState& start() const { return start_; }
  const SamplerState& place() const { return place_; }

 private:
  SamplerState start_;
  SamplerState place_;
  RepeatedDraw repeated_draw_;
  bool drawn_ = false;  // The epoch of place_.
};

// Whether a sampler that starts at `start` can go on from `state`. Errors:
// kInvalidArgument, naming both orders if they differ, or the number that is
// out of range and its range.
absl::Status CheckState(const SamplerState& state, const SamplerState& start,
                        int64_t dataset_size);

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_SAMPLER_H_
