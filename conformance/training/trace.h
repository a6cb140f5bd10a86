// The traces of ranks that train, and the run of one rank that they are
// compared with.
#ifndef LOCKSTEP_CONFORMANCE_TRAINING_TRACE_H_
#define LOCKSTEP_CONFORMANCE_TRAINING_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
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

// Returns "epoch 1 step 0".
std::string StepName(const Expectation& want, size_t s);

// Checks that every trace has the expected steps and every array the expected
// size. Error: kDataLoss.
absl::Status CheckShapes(const Expectation& want,
                         std::span<const RankTrace> ranks);

// Returns the parameter and the index in it for element i of the flat array:
// "W2[17]".
std::string ElementName(std::span<const ParameterSpec> specs, int64_t i);

}  // namespace lockstep::conformance

#endif  // LOCKSTEP_CONFORMANCE_TRAINING_TRACE_H_
