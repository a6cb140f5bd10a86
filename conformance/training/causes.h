// The causes of a wrong step, found from its gradients or from its update of
// the parameters.
#ifndef LOCKSTEP_CONFORMANCE_TRAINING_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_TRAINING_CAUSES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/model.h"
#include "models/reference/bounded.h"

namespace lockstep::conformance {

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

#endif  // LOCKSTEP_CONFORMANCE_TRAINING_CAUSES_H_
