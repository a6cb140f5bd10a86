// The checks of the samples that the ranks see: parts of CheckSameTraining
// (checks.h).
#ifndef LOCKSTEP_CONFORMANCE_TRAINING_SAMPLE_CHECKS_H_
#define LOCKSTEP_CONFORMANCE_TRAINING_SAMPLE_CHECKS_H_

#include <span>

#include "absl/status/status.h"
#include "conformance/training/trace.h"

namespace lockstep::conformance {

// Checks that in every step all ranks together see the samples that one rank
// would see, each the same number of times. Compares images and labels. Their
// order and their distribution over the ranks do not matter.
absl::Status CheckSamples(const Expectation& want,
                          std::span<const RankTrace> ranks);

// Checks that no epoch deals the samples to the steps as an earlier epoch did.
// Compares only the ranks' run with itself.
absl::Status CheckEpochsDiffer(const Expectation& want,
                               std::span<const RankTrace> ranks);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_TRAINING_SAMPLE_CHECKS_H_
