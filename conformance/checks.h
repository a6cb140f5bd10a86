// The checks behind the claim "N ranks compute what one rank computes".
//
// Each takes what the ranks did and returns kDataLoss with one line that names
// what is wrong and where, or OK. Every one of them has a mutant that it must
// reject (training_mutants.h). A comparison is written so that NaN fails it.
#ifndef LOCKSTEP_CONFORMANCE_CHECKS_H_
#define LOCKSTEP_CONFORMANCE_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "conformance/reference/bounded.h"
#include "conformance/trace.h"
#include "models/model.h"

namespace lockstep {

// What one rank alone would do.
struct Expectation {
  // One step of it.
  struct Step {
    int64_t epoch = 0;
    int64_t step = 0;  // In the epoch.
    Samples samples;   // The global batch.
  };

  std::vector<ParameterSpec> specs;
  std::vector<float> start;  // Rank 0's parameters, before any communication.
  float learning_rate = 0;
  std::vector<Step> steps;
  // What an epoch's steps would see if it were not shuffled; empty: not known.
  std::vector<Samples> unshuffled = {};

  // The gradient of the mean loss of `samples` at `parameters`, with its
  // tolerance (reference/lenet_reference.h).
  std::function<Bounded(std::span<const float> parameters,
                        const Samples& samples)>
      reference;

  // If set, CheckStepGradients tells it, for each step and rank, how many times
  // its allowed error a gradient's largest error is: at most 1, where it
  // passes. NaN is an infinity. An update has no such number: its two roundings
  // are all that it is allowed, and among many some are as large as roundings
  // get.
  std::function<void(double error_over_allowed)> measure = nullptr;
};

// Element by element, NaN included, the gradient that every rank ended with
// lies within its bound of the reference. Names the first tensor and element
// that does not, and where one factor k explains the whole gradient, k and what
// it suggests.
absl::Status CheckGradients(std::span<const ParameterSpec> specs,
                            const Bounded& want,
                            std::span<const std::vector<float>> got_by_rank);

// The ranks hold the same bits. `what` is what the arrays are ("parameters").
// Zero and minus zero differ, as bits do.
absl::Status CheckBitsAgree(std::span<const ParameterSpec> specs,
                            absl::string_view what,
                            std::span<const std::vector<float>> by_rank);

// The checks of a whole run, one trace a rank.
//
// Every rank takes its first step from rank 0's own parameters, bit for bit.
absl::Status CheckSameStart(const Expectation& want,
                            std::span<const RankTrace> ranks);

// In every step the samples of all ranks together are those that one rank would
// see, each as often; images and labels, in any order, dealt in any way.
absl::Status CheckSamples(const Expectation& want,
                          std::span<const RankTrace> ranks);

// No epoch deals the samples to the steps as an earlier one did. Compares the
// ranks' run with itself alone.
absl::Status CheckEpochsDiffer(const Expectation& want,
                               std::span<const RankTrace> ranks);

// In every step the ranks hold the same gradients, and before and after it the
// same parameters, bit for bit.
absl::Status CheckRanksAgree(const Expectation& want,
                             std::span<const RankTrace> ranks);

// In every step the gradient that the ranks used is the one that one rank
// computes on the global batch at rank 0's own current parameters.
absl::Status CheckStepGradients(const Expectation& want,
                                std::span<const RankTrace> ranks);

// In every step value becomes value - learning_rate * gradient, up to the
// rounding of the product and of the difference.
absl::Status CheckUpdates(const Expectation& want,
                          std::span<const RankTrace> ranks);

struct Check {
  std::string name;
  absl::Status (*run)(const Expectation& want, std::span<const RankTrace>);
};

// All of them, cheapest first.
const std::vector<Check>& AllChecks();

// All of them, to the first that fails, whose name starts the message. If they
// pass, then by induction over the steps the N ranks trained as one rank does:
// same start, same samples, and in each step the right gradient at the
// parameters the run itself is at, applied the right way. No tolerance
// accumulates, however long the run.
absl::Status CheckSameTraining(const Expectation& want,
                               std::span<const RankTrace> ranks);

// "epoch 1 step 0".
std::string StepName(const Expectation& want, size_t s);

// Every trace has the expected steps, and every array the expected size. Error:
// kDataLoss.
absl::Status CheckShapes(const Expectation& want,
                         std::span<const RankTrace> ranks);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_CHECKS_H_
