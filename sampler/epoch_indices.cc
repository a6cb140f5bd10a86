// Reading and computing indices.
#include "sampler/epoch_indices.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lockstep {

void EpochIndices::Read(int64_t first, std::span<int64_t> out) const {
  if (!part_) {
    std::copy_n(list_.begin() + first, out.size(), out.begin());
    return;
  }
  for (int64_t& entry : out) entry = part_->At(first++);
  if (permutation_) permutation_->Map(out);
}

absl::StatusOr<std::vector<int64_t>> EpochIndices::TakeAll() && {
  if (!part_) return std::move(list_);
  constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();
  if (size() > kMaxSize) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a list of ", size(),
                     " indices is too long to hold in memory, at most ",
                     kMaxSize, " are: read it in parts"));
  }
  std::vector<int64_t> all(size());
  Read(0, all);
  return all;
}

}  // namespace lockstep
