// Draws that are held in memory.
#include "sampler/sampler.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "sampler/epoch_indices.h"

namespace lockstep {

absl::StatusOr<std::vector<int64_t>> ResumableSampler::Indices() {
  LOCKSTEP_ASSIGN_OR_RETURN(EpochIndices indices, Draw());
  return std::move(indices).TakeAll();
}

}  // namespace lockstep
