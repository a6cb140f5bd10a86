// The indices that a rank draws for an epoch.
#ifndef LOCKSTEP_SAMPLER_EPOCH_INDICES_H_
#define LOCKSTEP_SAMPLER_EPOCH_INDICES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "sampler/keyed_permutation.h"
#include "sampler/strided_part.h"

namespace lockstep {

// A list that is either held in memory or computed where it is read, in O(1)
// memory. Immutable, thread safe.
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
  std::vector<int64_t> list_;                    // Unless
  std::optional<StridedPart> part_;              // computed from this
  std::optional<KeyedPermutation> permutation_;  // and this.
};

}  // namespace lockstep

#endif  // LOCKSTEP_SAMPLER_EPOCH_INDICES_H_
