// What a wrong step looks like: the cause that would give its gradients, or
// its update of the parameters.
#ifndef LOCKSTEP_CONFORMANCE_STEP_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_STEP_CAUSES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "conformance/reference/bounded.h"
#include "models/model.h"

namespace lockstep {

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
// of samples), as least squares find them; a tensor is zero; its values are
// another place's; it is off by no more than bfloat16 rounds the parts.
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

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_STEP_CAUSES_H_
