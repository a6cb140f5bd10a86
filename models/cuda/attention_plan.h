// The plan of multi-head self-attention on a GPU.
#ifndef LOCKSTEP_MODELS_CUDA_ATTENTION_PLAN_H_
#define LOCKSTEP_MODELS_CUDA_ATTENTION_PLAN_H_

#include "models/cuda/plan.h"
#include "models/program/operation_plan.h"

namespace lockstep {

// Creates the plan of an AttentionOp, which `request` must hold, for a batch of
// at least 1: by cuDNN's fused kernels (fused_attention.h) if that supports it
// and attention has no dropout, otherwise as products of cuBLASLt and
// softmaxes. algorithm_name begins with "fused" or is "products".
PlanOr PlanAttention(const CudaPlanContext& context,
                     const PlanRequest& request);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_ATTENTION_PLAN_H_
