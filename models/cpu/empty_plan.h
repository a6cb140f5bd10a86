// What a layer does for a batch without samples.
#ifndef LOCKSTEP_MODELS_CPU_EMPTY_PLAN_H_
#define LOCKSTEP_MODELS_CPU_EMPTY_PLAN_H_

#include <memory>
#include <vector>

#include "models/cpu/layer.h"
#include "models/cpu/shape.h"
#include "models/parameters.h"

namespace lockstep {

// A plan that computes nothing: backward it zeroes the gradients of
// `parameters[index]` for each of `indices` and calls `ready` for them, in the
// order given. Borrows `parameters`.
std::unique_ptr<LayerPlan> CreateEmptyPlan(Parameters& parameters,
                                           std::vector<int> indices,
                                           const Shape& output);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_EMPTY_PLAN_H_
