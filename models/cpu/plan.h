// The plans of operations on the CPU.
#ifndef LOCKSTEP_MODELS_CPU_PLAN_H_
#define LOCKSTEP_MODELS_CPU_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/data_types.h"
#include "models/cpu/algorithm.h"
#include "models/cpu/onednn.h"
#include "models/model.h"
#include "models/program/operation_plan.h"
#include "syncbn/batch_norm.h"

namespace lockstep {

class BatchNormKernels;

// The state shared by the plans of one replica. All pointers outlive every
// plan.
struct PlanContext {
  dnnl::engine engine;
  dnnl::stream stream;
  // The type of activations and their gradients: float32 or bfloat16.
  // Parameters, their gradients and buffers are float32, and sums are taken in
  // float32.
  DataType type = DataType::kFloat32;
  Layout layout = Layout::kNhwc;  // By LayoutOf; of activations.
  ConvolutionAlgorithm convolution = ConvolutionAlgorithm::kDirect;
  Parameters* parameters = nullptr;
  Buffers* buffers = nullptr;
  BatchNormKernels* batch_norm_kernels = nullptr;
  // The group over which batch norm normalises in training; null: this rank's
  // batch alone.
  Communicator* batch_norm_group = nullptr;
};

// Creates the plan of any operation. For n = 0 the plan only sets gradients to
// zero, except that a batch norm still takes part in the group's messages. A
// call takes milliseconds, so keep the plan. Errors: kInternal, naming the
// operation, if oneDNN fails.
PlanOr CreatePlan(const PlanContext& context, const PlanRequest& request);

// Returns what `make`, which may throw dnnl::error, returns for the operation.
// For a batch without samples, returns a plan that sets the gradients of the
// parameters in `indices` to zero, in the order given.
PlanOr MakePlan(const PlanContext& context, const PlanRequest& request,
                std::vector<int> indices,
                absl::FunctionRef<std::unique_ptr<OperationPlan>()> make);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_PLAN_H_
