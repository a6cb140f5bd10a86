// The checks behind the claim "N ranks compute what one rank computes".
//
// Each takes what the ranks did and returns kDataLoss with one line that names
// what is wrong and where, or OK. Every one of them has a mutant that it must
// reject (training_run.h). A comparison is written so that NaN fails it.
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
#include "models/model.h"
#include "models/reference/bounded.h"

namespace lockstep::conformance {

// The samples of one step: of one rank, or of all.
struct Samples {
  std::vector<float> images;  // [n, c, h, w].
  std::vector<int32_t> labels;

  int64_t size() const { return static_cast<int64_t>(labels.size()); }
};

// One rank's run of S steps. Flat arrays are laid out as Parameters lays them
// out.
struct RankTrace {
  std::vector<std::vector<float>> parameters;  // S + 1: before each step, last.
  std::vector<std::vector<float>> gradients;   // S: as the update used them.
  std::vector<Samples> samples;                // S: this rank's part.
};

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

// What a wrong step looks like: the cause that would give its gradients, or its
// update of the parameters.
//
// "W2[17]": the parameter and the element in it, of element i of all.
std::string ElementName(std::span<const ParameterSpec> specs, int64_t i);

// One step's gradients, flat, and what they are made of.
struct StepGradients {
  std::span<const ParameterSpec> specs;
  const Bounded& want;                        // Of the global batch.
  std::span<const std::vector<float>> ranks;  // As the ranks used them.
  // By rank: what its samples, n of them, add to `want`.
  std::span<const Bounded> parts;
  std::span<const int64_t> samples;
  std::span<const float> before;  // Rank 0's in the step before; may be empty.
};

// Each returns "; ..." for the first cause that explains the numbers, or "".
//
// One rank's gradient is not `want`. In this order: it is the step before's
// too, not cleared; it is a sum of the parts with other weights than 1 (a rank
// left out, counted twice, alone; the mean of means; divided by another count
// of samples), as least squares find them; a tensor is zero, or the sum of what
// lay there before the step; its values are another place's; it is off by no
// more than bfloat16 rounds the parts.
std::string CauseOfGradient(const StepGradients& step, int rank);

// Rank `rank` has other bits than rank 0: where they differ, one or both hold
// the gradient of their own samples; or both are right within rounding.
std::string CauseOfDisagreement(const StepGradients& step, int rank);

// One rank's step, flat arrays.
struct ParameterUpdate {
  std::span<const ParameterSpec> specs;
  std::span<const float> before, after;  // The parameters'.
  std::span<const float> gradient;       // As the update used it.
  double learning_rate;
  size_t world_size;
};

// "; ..." for the first cause that explains why element `wrong` is not
// before - learning_rate * gradient, or "": its gradient is NaN; all
// parameters, or else those of its tensor, shrink, take a multiple of the step,
// or both.
std::string CauseOfUpdate(const ParameterUpdate& update, size_t wrong);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECKS_H_
