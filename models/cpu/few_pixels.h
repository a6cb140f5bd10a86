// The plan of a convolution of small images.
#ifndef LOCKSTEP_MODELS_CPU_FEW_PIXELS_H_
#define LOCKSTEP_MODELS_CPU_FEW_PIXELS_H_

#include "models/cpu/plan.h"

namespace lockstep {

// Returns whether PlanFewPixels has the faster plan for a convolution: the
// images are so small, and the weights so many.
bool UsesFewPixelsPlan(const PlanContext& context, const PlanRequest& request);

// Creates the plan of a ConvolutionOp, which `request` must hold.
PlanOr PlanFewPixels(const PlanContext& context, const PlanRequest& request);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_FEW_PIXELS_H_
