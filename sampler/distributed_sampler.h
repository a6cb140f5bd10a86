// PyTorch's torch.utils.data.DistributedSampler, also in a variant without
// padding that draws each sample exactly once, and Paddle's
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

// The treatment of an epoch order whose length world_size does not divide.
enum class Tail {
  kPad,   // The order is repeated from its start: PyTorch's default.
  kDrop,  // The end of the order is cut: PyTorch's drop_last.
  kKeep,  // The order stays as it is: ranks differ by one sample, or are empty.
          // For evaluation, in which each sample must count once.
};

// How an epoch is shuffled.
enum class Permutation {
  kTorch,  // As PyTorch shuffles, bit for bit. An epoch takes O(dataset_size)
           // memory while it is drawn (see permutation.h).
  kKeyed,  // In O(1) memory, for any size (see keyed_permutation.h).
};

// The arguments of PyTorch's class, with its defaults, and some more.
// `world_size` is PyTorch's num_replicas.
struct DistributedSamplerOptions {
  // At least 1. At most 2^31 - 1 with PyTorch's shuffle, otherwise at most
  // 2^62.
  int64_t dataset_size = 0;
  int world_size = 1;   // At least 1.
  int rank = 0;         // In [0, world_size).
  bool shuffle = true;  // If false, the order is 0, 1, 2, ...
  int64_t seed = 0;     // The same on every rank. Cast 2^63 and above.
  Tail tail = Tail::kPad;
  Permutation permutation = Permutation::kTorch;
  RepeatedDraw repeated_draw = RepeatedDraw::kRefuse;
};

// Draws by default the same indices as PyTorch, bit for bit. The order of an
// epoch is a permutation drawn from seed + epoch. `tail` determines whether the
// order is made a multiple of world_size long. Rank r visits its positions r, r
// + P, r + 2P, ... Not thread safe.
//
// After k indices each, the ranks have together visited the first k * P
// positions; a state holds this number. At another world size, a resumed run
// continues with the remaining positions, padded anew.
//
// seed + epoch wraps at 64 bits; PyTorch raises beyond [-2^63, 2^64). From
// kWideDrawSize samples on, the order is that of PyTorch 2.6 and later (see
// permutation.h).
class DistributedSampler : public EpochSampler {
 public:
  // Errors: kInvalidArgument if an option is out of the range above, or if
  // kDrop leaves no sample (dataset_size < world_size). PyTorch would train on
  // nothing in that case.
  static absl::StatusOr<DistributedSampler> Create(
      const DistributedSamplerOptions& options);

  SampleCounts Counts() const override;

  // Cost: O(dataset_size) with PyTorch's shuffle, for any world_size. Otherwise
  // O(1), and the indices are computed when they are read.
  absl::StatusOr<EpochIndices> Draw() override;

  absl::StatusOr<SamplerState> StateAfter(int64_t visited) const override;
  absl::Status Restore(const SamplerState& state) override;

 private:
  explicit DistributedSampler(const DistributedSamplerOptions& options);

  // Returns the positions that a rank has left.
  StridedPart PartOf(int rank) const;

  DistributedSamplerOptions options_;
};

// The arguments of paddle.io.DistributedBatchSampler, with its defaults.
// `world_size` is Paddle's num_replicas. Paddle's drop_last, which drops a
// rank's last batch if it is partial, is an option of BatchSampler here.
struct PaddleSamplerOptions {
  int64_t dataset_size = 0;  // At least 1. With padding at most 2^31 - 1.
  int world_size = 1;        // At least 1.
  int rank = 0;              // In [0, world_size).
  int64_t batch_size = 1;    // At least 1.
  bool shuffle = false;      // Depends only on the epoch: there is no seed.
  RepeatedDraw repeated_draw = RepeatedDraw::kAdvance;
};

// Draws the same indices as Paddle, bit for bit. The indices of a rank's
// batches follow one another; a BatchSampler of the same batch size cuts them.
//
// An epoch is 0, 1, 2, ..., continued from 0 again until world_size divides its
// length. This order, padding included, is shuffled as numpy's
// RandomState(epoch).shuffle does. The ranks then get one batch each, in turn.
// The samples at the end, too few for a full batch on every rank, are split
// evenly, in rank order. Not thread safe.
//
// A state is a place between two of these rounds. At another world size or
// batch size, a resumed run continues with the samples that no rank has
// visited, in the same order. Earlier padding is dropped. New padding is added
// at the end, from the first of the remaining samples.
class PaddleSampler : public EpochSampler {
 public:
  // Errors: kInvalidArgument if an option is out of the range above.
  static absl::StatusOr<PaddleSampler> Create(
      const PaddleSamplerOptions& options);

  SampleCounts Counts() const override;

  // Errors: also kInvalidArgument if the sampler shuffles and the epoch is not
  // in [0, 2^32), numpy's range of seeds. Cost: O(dataset_size + world_size) in
  // time and in memory: 4 bytes a sample.
  absl::StatusOr<EpochIndices> Draw() override;

  // Errors: also kInvalidArgument if `visited` is neither a multiple of
  // batch_size nor the whole epoch.
  absl::StatusOr<SamplerState> StateAfter(int64_t visited) const override;

  // Cost: O(dataset_size) if the world size or batch size differs from the
  // state's.
  absl::Status Restore(const SamplerState& state) override;

 private:
  explicit PaddleSampler(const PaddleSamplerOptions& options);

  // Returns how many positions all ranks take together, padding included, since
  // these ranks took over.
  int64_t DealtCount() const;

  // Returns the DealtCount() samples that the ranks take, in order.
  std::vector<int32_t> DealtSamples() const;

  PaddleSamplerOptions options_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_DISTRIBUTED_SAMPLER_H_
