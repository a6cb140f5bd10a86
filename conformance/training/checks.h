// The checks behind the claim "N ranks compute what one rank computes".
//
// Each check takes the traces of all ranks. It returns OK, or kDataLoss with
// one line that names the error and its place. Every check has a mutant that it
// must reject (mutants.h). NaN fails every comparison.
#ifndef LOCKSTEP_CONFORMANCE_TRAINING_CHECKS_H_
#define LOCKSTEP_CONFORMANCE_TRAINING_CHECKS_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "conformance/training/trace.h"
#include "models/model.h"
#include "models/reference/bounded.h"

namespace lockstep::conformance {

// Checks that every element of every rank's gradient lies within its bound of
// the reference; NaN does not. The error names the first wrong tensor and
// element. If one factor k explains the whole gradient, the error also gives k
// and its likely cause.
absl::Status CheckGradients(std::span<const ParameterSpec> specs,
                            const Bounded& want,
                            std::span<const std::vector<float>> got_by_rank);

// Checks that the ranks hold the same bits. `what` names the arrays
// ("parameters"). Zero and minus zero differ.
absl::Status CheckBitsAgree(std::span<const ParameterSpec> specs,
                            absl::string_view what,
                            std::span<const std::vector<float>> by_rank);

// The checks of a whole run, with one trace for each rank. sample_checks.h
// declares two more of them.
//
// Checks that every rank takes its first step from rank 0's own parameters, bit
// for bit.
absl::Status CheckSameStart(const Expectation& want,
                            std::span<const RankTrace> ranks);

// Checks that the ranks hold the same gradients in every step, and the same
// parameters before and after it, bit for bit.
absl::Status CheckRanksAgree(const Expectation& want,
                             std::span<const RankTrace> ranks);

// Checks that in every step the ranks used the gradient that one rank computes
// on the global batch at rank 0's current parameters.
absl::Status CheckStepGradients(const Expectation& want,
                                std::span<const RankTrace> ranks);

// Checks that in every step a value becomes value - learning_rate * gradient,
// up to the rounding of the product and of the difference.
absl::Status CheckUpdates(const Expectation& want,
                          std::span<const RankTrace> ranks);

struct Check {
  std::string name;
  absl::Status (*run)(const Expectation& want, std::span<const RankTrace>);
};

// Returns all checks, the cheapest first.
const std::vector<Check>& AllChecks();

// Runs all checks up to the first failure; the message starts with that check's
// name. If all pass, the N ranks trained as one rank does, by induction over
// the steps. They have the same start and the same samples. Each step has the
// right gradient at the run's own parameters, applied in the right way. No
// tolerance accumulates, however long the run.
absl::Status CheckSameTraining(const Expectation& want,
                               std::span<const RankTrace> ranks);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_TRAINING_CHECKS_H_
