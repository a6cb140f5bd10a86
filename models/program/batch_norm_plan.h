// The plan of batch norm, which is the same on every device.
#ifndef LOCKSTEP_MODELS_PROGRAM_BATCH_NORM_PLAN_H_
#define LOCKSTEP_MODELS_PROGRAM_BATCH_NORM_PLAN_H_

#include "base/data_types.h"
#include "models/model.h"
#include "models/program/operation_plan.h"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"

namespace lockstep {

// The layers' surroundings. All pointers outlive the plans.
struct BatchNormContext {
  DataType type = DataType::kFloat32;  // Of activations.
  Layout layout = Layout::kNhwc;       // Of activations.
  Parameters* parameters = nullptr;    // In the kernels' memory,
  Buffers* buffers = nullptr;          // as the float32 buffers are.
  BatchNormKernels* kernels = nullptr;
  // The group over which batch norm normalises in training; null: this rank's
  // batch alone.
  Communicator* group = nullptr;
};

// Plans a BatchNormOp, also for a batch of no sample, whose rank takes part in
// the group's messages. Errors: those of SyncBatchNorm::Create.
PlanOr PlanBatchNorm(const BatchNormContext& context,
                     const PlanRequest& request);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_PROGRAM_BATCH_NORM_PLAN_H_
