// The plan of multi-head self-attention.
#ifndef LOCKSTEP_MODELS_CPU_ATTENTION_H_
#define LOCKSTEP_MODELS_CPU_ATTENTION_H_

#include "models/cpu/plan.h"

namespace lockstep {

// Creates the plan of an AttentionOp, which `request` must hold.
PlanOr PlanAttention(const PlanContext& context, const PlanRequest& request);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_ATTENTION_H_
