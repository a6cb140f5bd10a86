// The plan of layer norm.
#ifndef LOCKSTEP_MODELS_CPU_LAYER_NORM_H_
#define LOCKSTEP_MODELS_CPU_LAYER_NORM_H_

#include "models/cpu/plan.h"
#include "models/program/operation_plan.h"

namespace lockstep {

// Creates the plan of a LayerNormOp, which `request` must hold.
PlanOr PlanLayerNorm(const PlanContext& context, const PlanRequest& request);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_LAYER_NORM_H_
