// The work of one operation for one batch size: the interface that cpu_model.cc
// drives.
#ifndef LOCKSTEP_MODELS_CPU_PLAN_H_
#define LOCKSTEP_MODELS_CPU_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "models/cpu/algorithm.h"
#include "models/cpu/onednn.h"
#include "models/model.h"
#include "models/networks/network.h"
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

// One operation's work on one batch size, prepared once and run every step. The
// caller owns the memory: host memory, aligned to 64 bytes except for a
// network's input, with activations of the context's type and layout. A plan
// has no state between calls. Not thread safe.
class OperationPlan {
 public:
  struct ForwardBuffers {
    const void* x;       // The first input.
    const void* second;  // The second input; null if there is none.
    void* y;             // Overwritten.
    void* saved;         // [saved_bytes], kept until the backward call.
    void* scratch;       // [scratch_bytes], free between calls.
    bool training;       // If false, statistics are read, not updated.
    const Batch* batch;  // For the keys of random masks.
  };
  struct BackwardBuffers {
    const void* x;       // x, second and y are as forward left them
    const void* second;  // if the plan reads them, else unspecified.
    const void* y;
    void* saved;
    void* dy;       // The gradient of y; unspecified afterwards.
    void* dx;       // Overwritten; null if not wanted.
    void* dsecond;  // The same for the second input.
    void* scratch;
    const Batch* batch;
  };

  virtual ~OperationPlan() = default;

  // Computes y. Errors: kInternal, naming the operation, if oneDNN fails; in
  // training, those of the batch norm group.
  virtual absl::Status Forward(const ForwardBuffers& buffers) = 0;

  // Overwrites the gradients of the operation's parameters and calls `ready`
  // for each of them, if possible before dx is computed. Errors: as for
  // Forward.
  virtual absl::Status Backward(const BackwardBuffers& buffers,
                                Model::GradientReady ready) = 0;

  // The members below are set only by constructors. `algorithm_name` names the
  // algorithm for reports, if there is a choice. If the directions differ, it
  // lists those of forward, of the weights' gradient and of the input's
  // gradient.
  std::string algorithm_name;
  int64_t saved_bytes = 0;
  int64_t scratch_bytes = 0;
  bool backward_reads_x = true;  // x and the second input.
  bool backward_reads_y = false;
  bool dx_may_share_dy = false;       // dx may share dy's memory.
  bool dsecond_may_share_dy = false;  // dsecond may share it; dx then must not.
};

// A request for a plan: an operation, its input for a batch (n >= 0), its
// output.
struct PlanRequest {
  const Network::Operation* operation;
  Shape x;
  Shape output;
  bool input_gradient;  // Whether backward computes dx.
};

// Creates the plan of any operation. For n = 0 the plan only sets gradients to
// zero, except that a batch norm still takes part in the group's messages. A
// call takes milliseconds, so keep the plan. Errors: kInternal, naming the
// operation, if oneDNN fails.
using PlanOr = absl::StatusOr<std::unique_ptr<OperationPlan>>;
PlanOr CreatePlan(const PlanContext& context, const PlanRequest& request);

// Returns what `make`, which may throw dnnl::error, returns for the operation.
// For a batch without samples, returns a plan that sets the gradients of the
// parameters in `indices` to zero, in the order given.
PlanOr MakePlan(const PlanContext& context, const PlanRequest& request,
                std::vector<int> indices,
                absl::FunctionRef<std::unique_ptr<OperationPlan>()> make);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_PLAN_H_
