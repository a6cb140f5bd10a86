// One timed draw of an epoch.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_DRAW_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_DRAW_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "benchmarks/sampler_plan.h"

namespace lockstep {

struct DrawResult {
  double seconds = 0;
  int64_t count = 0;      // Indices drawn.
  uint32_t checksum = 0;  // IndexChecksum of them.
};

// Draws the epoch once with our sampler of that kind: SetEpoch and Indices are
// timed, so from nothing to a list of int64 in memory. Checks the indices
// outside that time (CheckIndices). Errors: kDataLoss if they are wrong.
// Precondition: subject is kTorch, kExact or kPaddle.
absl::StatusOr<DrawResult> DrawEpoch(DrawSubject subject, int64_t size);

// The CRC-32 of the indices as they lie in memory: other indices, or the same
// in another order, have another one, but for one chance in 2^32.
uint32_t IndexChecksum(std::span<const int64_t> indices);

struct IndexCounts {
  int64_t drawn = 0;
  int64_t most_repeated = 0;  // Of them: those that came before.
};

// What the draw of this rank has. PyTorch's padding deals no sample twice to
// one rank; Paddle's is shuffled with the samples, and may.
// Precondition: as DrawEpoch's.
IndexCounts DrawnCounts(DrawSubject subject, int64_t size);

// Every index is in [0, size), and there are as many, with no more of
// them repeated, as `counts` says. Errors: kDataLoss. Cost: a bit of memory a
// sample.
absl::Status CheckIndices(std::span<const int64_t> indices, int64_t size,
                          const IndexCounts& counts);

}  // namespace lockstep

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_DRAW_H_
