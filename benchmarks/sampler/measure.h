// The order in which epochs are drawn.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_MEASURE_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_MEASURE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/sampler/draw.h"
#include "benchmarks/sampler/plan.h"

namespace lockstep::benchmarks {

// What the draws of one subject at one size gave.
struct MeasuredDraws {
  DrawSubject subject = DrawSubject::kTorch;
  std::vector<double> seconds = {};  // One of each round.
  int64_t count = 0;
  uint32_t checksum = 0;
};

struct MeasuredEpoch {
  int64_t size = 0;
  std::vector<MeasuredDraws> draws = {};
};

using DrawFunction = std::function<absl::StatusOr<DrawResult>(
    DrawSubject subject, int64_t size)>;

// Seconds since the command began.
using ElapsedFunction = std::function<double()>;

// Draws an epoch of `size` samples with each subject, round by round, the first
// of a round another one each time, so that a drift of the machine and what a
// neighbour leaves in the caches meet all alike. settings.rounds rounds; if
// that is 0 at least 2, and up to 15 as long as another one like the longest so
// far ends before settings.seconds.
//
// If PyTorch cannot draw, it is taken out of `subjects`, and `missing` says at
// which size and why. Errors: those of other subjects, beginning with the name;
// kDataLoss if PyTorch's indices are not kTorch's, or if a subject draws others
// than in the round before.
absl::StatusOr<MeasuredEpoch> MeasureEpoch(const SamplerSettings& settings,
                                           int64_t size,
                                           const DrawFunction& draw,
                                           const ElapsedFunction& elapsed,
                                           std::vector<DrawSubject>& subjects,
                                           std::string& missing);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_MEASURE_H_
