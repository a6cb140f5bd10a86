// PyTorch's torch.utils.data.DistributedSampler, also without padding, so that
// each sample is drawn exactly once.
#ifndef LOCKSTEP_SAMPLER_DISTRIBUTED_SAMPLER_H_
#define LOCKSTEP_SAMPLER_DISTRIBUTED_SAMPLER_H_

#include <cstdint>

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
class DistributedSampler : public ResumableSampler {
 public:
  // Errors: kInvalidArgument if an option is out of the range above, or if
  // kDrop leaves no sample (dataset_size < world_size), where PyTorch would
  // train on nothing.
  static absl::StatusOr<DistributedSampler> Create(
      const DistributedSamplerOptions& options);

  void SetEpoch(int64_t epoch) override { cursor_.SetEpoch(epoch); }
  int64_t epoch() const override { return cursor_.place().epoch; }
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
  EpochCursor cursor_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_DISTRIBUTED_SAMPLER_H_
