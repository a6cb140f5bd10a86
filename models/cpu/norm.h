// The plans of batch norm and layer norm.
#ifndef LOCKSTEP_MODELS_CPU_NORM_H_
#define LOCKSTEP_MODELS_CPU_NORM_H_

#include "models/cpu/plan.h"

namespace lockstep {

// Create the plans of a BatchNormOp and of a LayerNormOp, which `request` must
// hold.
PlanOr PlanBatchNorm(const PlanContext& context, const PlanRequest& request);
PlanOr PlanLayerNorm(const PlanContext& context, const PlanRequest& request);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_NORM_H_
