// The checks behind the claim "N ranks compute what one rank computes".
//
// Each check takes the traces of all ranks. It returns OK, or kDataLoss with
// one line that names the error and its place. Every check has a mutant that it
// must reject (training_run.h). NaN fails every comparison.
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

// The samples of one step, of one rank or of all ranks.
struct Samples {
  std::vector<float> images;  // [n, c, h, w].
  std::vector<int32_t> labels;

  int64_t size() const { return static_cast<int64_t>(labels.size()); }
};

// One rank's run of S steps. Flat arrays have the layout of Parameters.
struct RankTrace {
  std::vector<std::vector<float>> parameters;  // S + 1: per step, and the last.
  std::vector<std::vector<float>> gradients;   // S: as the update used them.
  std::vector<Samples> samples;                // S: the samples of this rank.
};

// The run of one rank alone.
struct Expectation {
  // One step of the run.
  struct Step {
    int64_t epoch = 0;
    int64_t step = 0;  // In the epoch.
    Samples samples;   // The global batch.
  };

  std::vector<ParameterSpec> specs;
  std::vector<float> start;  // Rank 0's parameters, before any communication.
  float learning_rate = 0;
  std::vector<Step> steps;
  // The samples of an epoch's steps without shuffling; empty if not known.
  std::vector<Samples> unshuffled = {};

  // Returns the gradient of the mean loss of `samples` at `parameters`, with
  // its tolerance (reference/lenet_reference.h).
  std::function<Bounded(std::span<const float> parameters,
                        const Samples& samples)>
      reference;

  // If set, CheckStepGradients calls it for each step and rank with the ratio
  // of the gradient's largest error to its allowed error. The ratio is at most
  // 1 if the gradient passes; NaN counts as infinity. Updates have no such
  // ratio. Only their two roundings are allowed, and among many updates some
  // errors reach that limit.
  std::function<void(double error_over_allowed)> measure = nullptr;
};

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

// The checks of a whole run, with one trace for each rank.
//
// Checks that every rank takes its first step from rank 0's own parameters, bit
// for bit.
absl::Status CheckSameStart(const Expectation& want,
                            std::span<const RankTrace> ranks);

// Checks that in every step all ranks together see the samples that one rank
// would see, each the same number of times. Compares images and labels. Their
// order and their distribution over the ranks do not matter.
absl::Status CheckSamples(const Expectation& want,
                          std::span<const RankTrace> ranks);

// Checks that no epoch deals the samples to the steps as an earlier epoch did.
// Compares only the ranks' run with itself.
absl::Status CheckEpochsDiffer(const Expectation& want,
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

// Returns "epoch 1 step 0".
std::string StepName(const Expectation& want, size_t s);

// Checks that every trace has the expected steps and every array the expected
// size. Error: kDataLoss.
absl::Status CheckShapes(const Expectation& want,
                         std::span<const RankTrace> ranks);

// The causes of a wrong step, found from its gradients or from its update of
// the parameters.
//
// Returns the parameter and the index in it for element i of the flat array:
// "W2[17]".
std::string ElementName(std::span<const ParameterSpec> specs, int64_t i);

// One step's gradients, flat, and the parts they are made of.
struct StepGradients {
  std::span<const ParameterSpec> specs;
  const Bounded& want;                        // Of the global batch.
  std::span<const std::vector<float>> ranks;  // As the ranks used them.
  // By rank: the contribution of its samples to `want`, and their number.
  std::span<const Bounded> parts;
  std::span<const int64_t> samples;
  std::span<const float> before;  // Rank 0's, in the step before; may be empty.
};

// Each of the two functions returns "; ..." for the first cause that explains
// the numbers, or "".
//
// Explains why one rank's gradient is not `want`. The causes are tried in this
// order:
// - it is the sum with the gradient of the previous step (not cleared);
// - it is a sum of the parts with weights other than 1, found by least squares
//   (a rank left out, counted twice or alone; the mean of means; a division by
//   another count of samples);
// - a tensor is zero, or is the sum over ranks of the previous step's values;
// - its values belong to another place;
// - its error is no larger than bfloat16 rounding of the parts.
std::string CauseOfGradient(const StepGradients& step, int rank);

// Explains why rank `rank` has other bits than rank 0. Where the two differ,
// one or both hold the gradient of their own samples, or both are right within
// rounding.
std::string CauseOfDisagreement(const StepGradients& step, int rank);

// One rank's step, as flat arrays.
struct ParameterUpdate {
  std::span<const ParameterSpec> specs;
  std::span<const float> before, after;  // Of the parameters.
  std::span<const float> gradient;       // As the update used it.
  double learning_rate;
  size_t world_size;
};

// Returns "; ..." for the first cause that explains why element `wrong` is not
// before - learning_rate * gradient, or "". The causes: its gradient is NaN;
// all parameters, or those of its tensor, shrink, take a multiple of the step,
// or both.
std::string CauseOfUpdate(const ParameterUpdate& update, size_t wrong);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_CHECKS_H_
