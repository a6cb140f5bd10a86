// The plans of operations that touch each value once, and dropout.
#ifndef LOCKSTEP_MODELS_CPU_POINTWISE_H_
#define LOCKSTEP_MODELS_CPU_POINTWISE_H_

#include <cstdint>

#include "base/data_types.h"
#include "models/cpu/plan.h"
#include "models/model.h"

namespace lockstep {

// Create the plans of a GeluOp, an EmbedOp, a FirstPositionOp, a DropoutOp and
// an AddOp, which `request` must hold.
PlanOr PlanGelu(const PlanContext& context, const PlanRequest& request);
PlanOr PlanEmbed(const PlanContext& context, const PlanRequest& request);
PlanOr PlanFirstPosition(const PlanContext& context,
                         const PlanRequest& request);
PlanOr PlanDropout(const PlanContext& context, const PlanRequest& request);
PlanOr PlanAdd(const PlanContext& context, const PlanRequest& request);

// Computes the dropout that several operations use: to[i] = from[i] / (1 -
// rate) if the layer's mask keeps element i, else 0. Both arrays are [n, size]
// of `type` and may be the same memory. The gradient is the same function of
// the output's gradient. A sample's mask consists of random numbers keyed by
// the batch's seed and step, the sample and the layer. The mask therefore
// depends neither on the rank nor on the sample's position in the batch.
void DropOut(const Batch& batch, int layer, double rate, DataType type,
             int64_t n, int64_t size, const void* from, void* to);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_POINTWISE_H_
