// PyTorch's torch.utils.data.DistributedSampler.
#ifndef LOCKSTEP_SAMPLER_DISTRIBUTED_SAMPLER_H_
#define LOCKSTEP_SAMPLER_DISTRIBUTED_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "sampler/sampler.h"

namespace lockstep {

// The arguments of PyTorch's class, with its defaults; `world_size` is its
// num_replicas.
struct DistributedSamplerOptions {
  int64_t dataset_size = 0;  // In [1, 2^31 - 1].
  int world_size = 1;        // At least 1.
  int rank = 0;              // In [0, world_size).
  bool shuffle = true;       // Else the epoch order is 0, 1, 2, ...
  int64_t seed = 0;          // The same on every rank; 2^63 and more: cast.
  bool drop_last = false;    // Drop the tail instead of padding it.
};

// Draws the same indices as PyTorch, bit for bit. The order of an epoch is a
// permutation drawn from seed + epoch; it is then made a multiple of world_size
// long, by repeating it from its start, or with drop_last by cutting its end;
// rank r visits positions r, r + P, r + 2P, ... of it. Thread compatible.
//
// Limits: the permutation is held in memory, 4 bytes a sample, while Indices
// runs, hence the bound on dataset_size. seed + epoch wraps at 64 bits, where
// PyTorch raises beyond [-2^63, 2^64). From kWideDrawSize samples on, the order
// is that of PyTorch 2.6 and later (see permutation.h).
class DistributedSampler : public Sampler {
 public:
  // Errors: kInvalidArgument if an option is out of the range above, or if
  // drop_last leaves no sample (dataset_size < world_size), where PyTorch would
  // train on nothing.
  static absl::StatusOr<DistributedSampler> Create(
      const DistributedSamplerOptions& options);

  void SetEpoch(int64_t epoch) override { epoch_ = epoch; }

  // Cost: O(dataset_size) with shuffle, whatever world_size is; else
  // O(num_samples()).
  std::vector<int64_t> Indices() const override;

  // The length of Indices(), the same on every rank.
  int64_t num_samples() const { return num_samples_; }

  // The length of the epoch order after padding or dropping:
  // num_samples() * world_size.
  int64_t total_size() const { return num_samples_ * options_.world_size; }

 private:
  DistributedSampler(const DistributedSamplerOptions& options,
                     int64_t num_samples)
      : options_(options), num_samples_(num_samples) {}

  DistributedSamplerOptions options_;
  int64_t num_samples_;
  int64_t epoch_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_DISTRIBUTED_SAMPLER_H_
