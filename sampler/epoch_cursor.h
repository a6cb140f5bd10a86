// What all samplers share: checks of their options, and which place of which
// epoch they draw from next.
#ifndef LOCKSTEP_SAMPLER_EPOCH_CURSOR_H_
#define LOCKSTEP_SAMPLER_EPOCH_CURSOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "sampler/sampler.h"

namespace lockstep {

// kInvalidArgument unless the size is in [1, most].
absl::Status CheckDatasetSize(int64_t dataset_size, int64_t most);

// kInvalidArgument unless world_size >= 1 and rank is in [0, world_size).
absl::Status CheckRankInWorld(int rank, int world_size);

// kInvalidArgument unless the batch size is at least 1.
absl::Status CheckBatchSize(int64_t batch_size);

// The common part of SetEpoch, Draw and Restore. Not thread safe.
class EpochCursor {
 public:
  // `start` is the state at the start of epoch 0; `shuffle` is whether the
  // order depends on the epoch.
  EpochCursor(SamplerState start, bool shuffle, RepeatedDraw repeated_draw);

  // Goes to the start of the epoch.
  void SetEpoch(int64_t epoch);

  // Goes to a place that was checked.
  void Restore(const SamplerState& state);

  // To be called by each draw: where it starts is then place(). Errors:
  // kFailedPrecondition for a second draw under kRefuse.
  absl::Status BeginDraw();

  // The epoch that the next draw is of.
  int64_t next_epoch() const;

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

#endif  // LOCKSTEP_SAMPLER_EPOCH_CURSOR_H_
