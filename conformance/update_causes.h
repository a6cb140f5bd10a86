// What a wrong update of parameters looks like: the mistake that would give it.
#ifndef LOCKSTEP_CONFORMANCE_UPDATE_CAUSES_H_
#define LOCKSTEP_CONFORMANCE_UPDATE_CAUSES_H_

#include <cstddef>
#include <span>
#include <string>

#include "models/parameters.h"

namespace lockstep {

// One rank's step, flat arrays.
struct ParameterUpdate {
  std::span<const ParameterSpec> specs;
  std::span<const float> before, after;  // The parameters'.
  std::span<const float> gradient;       // As the update used it.
  double learning_rate;
  size_t world_size;
};

// "; ..." for the first mistake that explains why element `wrong` is not
// before - learning_rate * gradient, or "": its gradient is NaN; all
// parameters, or else those of its tensor, shrink, take a multiple of the step,
// or both.
std::string CauseOfUpdate(const ParameterUpdate& update, size_t wrong);

}  // namespace lockstep

#endif  // LOCKSTEP_CONFORMANCE_UPDATE_CAUSES_H_
