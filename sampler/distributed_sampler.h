// PyTorch's torch.utils.data.DistributedSampler, also without padding, so that
// each sample is drawn exactly once; and Paddle's
// paddle.io.DistributedBatchSampler.
#ifndef LOCKSTEP_SAMPLER_DISTRIBUTED_SAMPLER_H_
#define LOCKSTEP_SAMPLER_DISTRIBUTED_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sampler/sampler.h"
#include "sampler/shard.h"

namespace lockstep {

// What happens to an epoch order that world_size does not divide.
enum class Tail {
  kPad,   // It is repeated from its start until it does: PyTorch's default.
  kDrop,  // Its end is cut: PyTorch's drop_last.
  kKeep,  // Nothing: ranks differ by one sample, or are empty. For evaluation,
          // where each sample must count once.
};

// How an epoch is shuffled.
enum class Permutation {
  kTorch,  // As PyTorch does, bit for bit, in O(dataset_size) memory while it
           // is drawn (see permutation.h).
  kKeyed,  // In O(1) memory, for any size (see keyed_permutation.h).
};

// The arguments of PyTorch's class, with its defaults, and more; `world_size`
// is its num_replicas.
struct DistributedSamplerOptions {
  // At least 1; at most 2^31 - 1 where PyTorch shuffles, else 2^62.
  int64_t dataset_size = 0;
  int world_size = 1;   // At least 1.
  int rank = 0;         // In [0, world_size).
  bool shuffle = true;  // Else the epoch order is 0, 1, 2, ...
  int64_t seed = 0;     // The same on every rank; 2^63 and more: cast.
  Tail tail = Tail::kPad;
  Permutation permutation = Permutation::kTorch;
  RepeatedDraw repeated_draw = RepeatedDraw::kRefuse;
};

// Draws, unless told otherwise, the same indices as PyTorch, bit for bit. The
// order of an epoch is a permutation drawn from seed + epoch; it is then made a
// multiple of world_size long, or not (Tail); rank r visits positions r, r + P,
// r + 2P, ... of it. Not thread safe.
//
// So after k indices each, the ranks have together visited the first k * P
// positions, which is the number that a state holds. At another world size a
// resumed run goes on with the rest, padded anew.
//
// seed + epoch wraps at 64 bits, where PyTorch raises beyond [-2^63, 2^64).
// From kWideDrawSize samples on, the order is that of PyTorch 2.6 and later
// (see permutation.h).
class DistributedSampler : public EpochSampler {
 public:
  // Errors: kInvalidArgument if an option is out of the range above, or if
  // kDrop leaves no sample (dataset_size < world_size), where PyTorch would
  // train on nothing.
  static absl::StatusOr<DistributedSampler> Create(
      const DistributedSamplerOptions& options);

  SampleCounts Counts() const override;

  // Cost: with PyTorch's shuffle O(dataset_size), whatever world_size is; else
  // O(1), and the indices are computed where they are read.
  absl::StatusOr<EpochIndices> Draw() override;

  absl::StatusOr<SamplerState> StateAfter(int64_t visited) const override;
  absl::Status Restore(const SamplerState& state) override;

 private:
  explicit DistributedSampler(const DistributedSamplerOptions& options);

  // The positions that a rank has left.
  StridedPart PartOf(int rank) const;

  DistributedSamplerOptions options_;
};

// The arguments of paddle.io.DistributedBatchSampler, with its defaults;
// `world_size` is its num_replicas. Its drop_last, which drops a rank's last
// batch if that is partial, is BatchSampler's.
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
class PaddleSampler : public EpochSampler {
 public:
  // Errors: kInvalidArgument if an option is out of the range above.
  static absl::StatusOr<PaddleSampler> Create(
      const PaddleSamplerOptions& options);

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
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_DISTRIBUTED_SAMPLER_H_
