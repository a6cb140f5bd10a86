// The plans of convolution and linear layers.
#ifndef LOCKSTEP_MODELS_CPU_LINEAR_H_
#define LOCKSTEP_MODELS_CPU_LINEAR_H_

#include "models/cpu/plan.h"

namespace lockstep {

// Create the plans of a ConvolutionOp and of a LinearOp, which `request` must
// hold. For small images PlanConvolution returns the plan of few_pixels.h.
PlanOr PlanConvolution(const PlanContext& context, const PlanRequest& request);
PlanOr PlanLinear(const PlanContext& context, const PlanRequest& request);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_LINEAR_H_
