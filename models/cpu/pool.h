// The plans of pooling.
#ifndef LOCKSTEP_MODELS_CPU_POOL_H_
#define LOCKSTEP_MODELS_CPU_POOL_H_

#include "models/cpu/plan.h"

namespace lockstep {

// Creates the plan of a PoolOp or a GlobalAveragePoolOp, which `request` must
// hold.
PlanOr PlanPool(const PlanContext& context, const PlanRequest& request);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_POOL_H_
