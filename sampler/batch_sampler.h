// Cuts the indices that a sampler draws into batches.
#ifndef LOCKSTEP_SAMPLER_BATCH_SAMPLER_H_
#define LOCKSTEP_SAMPLER_BATCH_SAMPLER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sampler/sampler.h"

namespace lockstep {

struct BatchSamplerOptions {
  int64_t batch_size = 1;  // Per rank; at least 1.
  // Whether to drop the epoch's last step if some rank has no full batch for
  // it. If false, that rank's batch is smaller.
  bool drop_last = false;
};

// Cuts an epoch of any ResumableSampler into batches, as PyTorch's BatchSampler
// does. Every rank gets the same number of batches. If ranks differ in length
// (Tail::kKeep), the last batch of some ranks is smaller or empty, and those
// ranks still take part in the step. Holds one batch; not thread safe.
//
//   if (resuming) LOCKSTEP_RETURN_IF_ERROR(batches.Restore(state));
//   for (int64_t epoch = batches.epoch(); epoch < epochs; ++epoch) {
//     LOCKSTEP_RETURN_IF_ERROR(batches.BeginEpoch());
//     while (const auto batch = batches.NextBatch()) Train(*batch);
//     batches.SetEpoch(epoch + 1);
//   }
class BatchSampler {
 public:
  // `sampler` must be at the start of an epoch. Errors: kInvalidArgument if
  // batch_size < 1, if the sampler cannot stop after a batch of that size
  // (PaddleSampler has its own batch size), or if drop_last leaves no batch of
  // a whole epoch.
  static absl::StatusOr<BatchSampler> Create(
      std::unique_ptr<ResumableSampler> sampler,
      const BatchSamplerOptions& options);

  // Selects the epoch that the next BeginEpoch draws, from its start. A
  // restored place in the epoch is lost.
  void SetEpoch(int64_t epoch);

  // Draws the epoch, or the rest of the restored epoch. Errors: the sampler's;
  // kFailedPrecondition if SetEpoch was not called since the last call. After
  // an error, NextBatch continues with the batches of the current epoch.
  absl::Status BeginEpoch();

  // Returns this rank's next batch, valid until the next call. Returns nullopt
  // after the last batch and before BeginEpoch. Cost: O(batch_size).
  std::optional<std::span<const int64_t>> NextBatch();

  // Returns the number of batches of the epoch, or of the rest of the restored
  // epoch. The number is the same on every rank.
  int64_t num_batches() const;

  int64_t epoch() const { return sampler_->epoch(); }

  // Returns the state after the batches that NextBatch has returned. The state
  // is the same on every rank that is at the same step. Errors: the sampler's.
  absl::StatusOr<SamplerState> State() const;

  // Makes the next BeginEpoch continue from `state`. At the same world size and
  // batch size, it yields exactly the batches that were left. Errors: the
  // sampler's.
  absl::Status Restore(const SamplerState& state);

 private:
  BatchSampler(std::unique_ptr<ResumableSampler> sampler,
               const BatchSamplerOptions& options);

  std::unique_ptr<ResumableSampler> sampler_;
  BatchSamplerOptions options_;
  std::optional<EpochIndices> indices_;  // The indices of the begun epoch.
  int64_t step_ = 0;  // The number of batches returned so far.
  std::vector<int64_t> batch_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_BATCH_SAMPLER_H_
