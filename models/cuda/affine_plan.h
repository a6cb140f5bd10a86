// The plans of convolutions and linear layers on a GPU.
#ifndef LOCKSTEP_MODELS_CUDA_AFFINE_PLAN_H_
#define LOCKSTEP_MODELS_CUDA_AFFINE_PLAN_H_

#include "models/cuda/plan.h"
#include "models/program/operation_plan.h"

namespace lockstep {

// Create the plans of a ConvolutionOp, through cuDNN, and of a LinearOp,
// through cuBLASLt, which `request` must hold, for a batch of at least 1.
PlanOr PlanConvolution(const CudaPlanContext& context,
                       const PlanRequest& request);
PlanOr PlanLinear(const CudaPlanContext& context, const PlanRequest& request);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_AFFINE_PLAN_H_
