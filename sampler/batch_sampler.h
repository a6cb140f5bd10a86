// Batches of what a sampler draws.
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
  int64_t batch_size = 1;  // Of one rank; at least 1.
  // Drop the epoch's last step if some rank has no whole batch for it, instead
  // of making its batch smaller.
  bool drop_last = false;
};

// Cuts an epoch of any ResumableSampler into batches, as PyTorch's BatchSampler
// does, the same number of them on every rank: where ranks differ in length
// (Tail::kKeep) the last batch of some is smaller or empty, and they still take
// part in the step. Holds one batch; not thread safe.
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
  // (PaddleSampler deals in batches of its own), or if drop_last leaves no
  // batch of a whole epoch.
  static absl::StatusOr<BatchSampler> Create(
      std::unique_ptr<ResumableSampler> sampler,
      const BatchSamplerOptions& options);

  // The next BeginEpoch draws this epoch, from its start: a place that was
  // restored is lost.
  void SetEpoch(int64_t epoch);

  // Draws the epoch, or what is left of the one restored. Errors: the
  // sampler's; kFailedPrecondition if no SetEpoch came since the last call.
  // After an error the batches of the current epoch go on.
  absl::Status BeginEpoch();

  // This rank's next batch, valid until the next call; none after the last one
  // and before BeginEpoch. Cost: O(batch_size).
  std::optional<std::span<const int64_t>> NextBatch();

  // The batches of the epoch, or of what is left of the one restored, the same
  // number on every rank.
  int64_t num_batches() const;

  int64_t epoch() const { return sampler_->epoch(); }

  // The state after the batches that NextBatch has given, the same on every
  // rank that is at the same step. Errors: the sampler's.
  absl::StatusOr<SamplerState> State() const;

  // The next BeginEpoch goes on from there. At the same world size and batch
  // size it gives the very batches that were left. Errors: the sampler's.
  absl::Status Restore(const SamplerState& state);

 private:
  BatchSampler(std::unique_ptr<ResumableSampler> sampler,
               const BatchSamplerOptions& options);

  std::unique_ptr<ResumableSampler> sampler_;
  BatchSamplerOptions options_;
  std::optional<EpochIndices> indices_;  // Of the epoch that was begun.
  int64_t step_ = 0;                     // Batches given since.
  std::vector<int64_t> batch_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_BATCH_SAMPLER_H_
