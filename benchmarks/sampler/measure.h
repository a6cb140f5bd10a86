// The order in which epochs are drawn.
#ifndef LOCKSTEP_BENCHMARKS_SAMPLER_MEASURE_H_
#define LOCKSTEP_BENCHMARKS_SAMPLER_MEASURE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/harness/rounds.h"
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

// Draws an epoch of `size` samples with each subject in rounds
// (harness/rounds.h): settings.rounds, or 2 to 15 within settings.seconds of
// the start of the command, which is where `elapsed` begins.
//
// If PyTorch cannot draw, it is taken out of `subjects`, and `missing` says at
// which size and why. Errors: those of other subjects, beginning with the name;
// kDataLoss if PyTorch's indices are not kTorch's, or if a subject draws others
// than in the round before.
absl::StatusOr<MeasuredEpoch> MeasureEpoch(const SamplerSettings& settings,
                                           int64_t size,
                                           const DrawFunction& draw,
                                           const ClockFunction& elapsed,
                                           std::vector<DrawSubject>& subjects,
                                           std::string& missing);

}  // namespace lockstep::benchmarks

#endif  // LOCKSTEP_BENCHMARKS_SAMPLER_MEASURE_H_
