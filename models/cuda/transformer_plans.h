// The plans of a transformer's operations on a GPU, except for products
// (affine_plan.h, attention_plan.h).
#ifndef LOCKSTEP_MODELS_CUDA_TRANSFORMER_PLANS_H_
#define LOCKSTEP_MODELS_CUDA_TRANSFORMER_PLANS_H_

#include "models/cuda/plan.h"
#include "models/program/operation_plan.h"

namespace lockstep {

// Create the plans of a LayerNormOp, a GeluOp, an EmbedOp, a FirstPositionOp, a
// DropoutOp and an AddOp, which `request` must hold, for a batch of at least 1.
PlanOr PlanLayerNorm(const CudaPlanContext& context,
                     const PlanRequest& request);
PlanOr PlanGelu(const CudaPlanContext& context, const PlanRequest& request);
PlanOr PlanEmbed(const CudaPlanContext& context, const PlanRequest& request);
PlanOr PlanFirstPosition(const CudaPlanContext& context,
                         const PlanRequest& request);
PlanOr PlanDropout(const CudaPlanContext& context, const PlanRequest& request);
PlanOr PlanAdd(const CudaPlanContext& context, const PlanRequest& request);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_TRANSFORMER_PLANS_H_
