// Paddle's paddle.io.DistributedBatchSampler.
#ifndef LOCKSTEP_SAMPLER_PADDLE_SAMPLER_H_
#define LOCKSTEP_SAMPLER_PADDLE_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sampler/sampler.h"

namespace lockstep {

// The arguments of Paddle's class, with its defaults; `world_size` is its
// num_replicas. Its drop_last, which drops a rank's last batch if that is
// partial, is BatchSampler's.
struct PaddleSamplerOptions {
  int64_t dataset_size = 0;  // At least 1; padded at most 2^31 - 1.
  int world_size = 1;        // At least 1.
  int rank = 0;              // In [0, world_size).
  int64_t batch_size = 1;    // At least 1.
  bool shuffle = false;      // By the epoch alone: there is no seed.
  RepeatedDraw repeated_draw = RepeatedDraw::kAdvance;
};

// Draws the same indices as Paddle, bit for bit: those of all of a rank's
// batches, one after the other, to be cut by a BatchSampler of the same batch
// size. An epoch is 0, 1, 2, ... and from the start again until world_size
// divides it; that, padding included, is shuffled as numpy's
// RandomState(epoch).shuffle does; it is dealt to the ranks in turn, a batch at
// a time; the rest, which has no whole batch for every rank, is split evenly,
// in rank order. Not thread safe.
//
// A state is a place between two of these rounds. At another world size or
// batch size, a resumed run goes on with the samples that no rank has visited,
// in the same order. Earlier padding is dropped; new padding comes at the end,
// from the first samples that are left.
class PaddleSampler : public ResumableSampler {
 public:
  // Errors: kInvalidArgument if an option is out of the range above.
  static absl::StatusOr<PaddleSampler> Create(
      const PaddleSamplerOptions& options);

  void SetEpoch(int64_t epoch) override { cursor_.SetEpoch(epoch); }
  int64_t epoch() const override { return cursor_.place().epoch; }
  SampleCounts Counts() const override;

  // Errors: also kInvalidArgument if it shuffles and the epoch is not in
  // [0, 2^32), which is what numpy takes as a seed. Cost: O(dataset_size +
  // world_size), in memory too: 4 bytes a sample.
  absl::StatusOr<EpochIndices> Draw() override;

  // Errors: also kInvalidArgument if `visited` is neither a multiple of
  // batch_size nor everything.
  absl::StatusOr<SamplerState> StateAfter(int64_t visited) const override;

  // Cost: O(dataset_size) at another world size or batch size than the state's.
  absl::Status Restore(const SamplerState& state) override;

 private:
  explicit PaddleSampler(const PaddleSamplerOptions& options);

  // How many positions all ranks take together, padding included, from the
  // place where these ranks took over.
  int64_t Dealt() const;

  // What the ranks take, in order: Dealt() samples.
  std::vector<int32_t> DealtSamples() const;

  PaddleSamplerOptions options_;
  EpochCursor cursor_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_PADDLE_SAMPLER_H_
