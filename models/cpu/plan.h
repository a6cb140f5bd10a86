// The work of one operation for one batch size: what cpu_model.cc strings
// together, and the operations' plans.
#ifndef LOCKSTEP_MODELS_CPU_PLAN_H_
#define LOCKSTEP_MODELS_CPU_PLAN_H_

#include <cstddef>
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

// What the plans of one replica share. All pointers outlive every plan.
struct PlanContext {
  dnnl::engine engine;
  dnnl::stream stream;
  // Of activations and their gradients: float32 or bfloat16. Parameters, their
  // gradients and buffers are float32, and sums are taken in it.
  DataType type = DataType::kFloat32;
  Layout layout = Layout::kNhwc;  // Of activations: LayoutOf.
  ConvolutionAlgorithm convolution = ConvolutionAlgorithm::kDirect;
  Parameters* parameters = nullptr;
  Buffers* buffers = nullptr;
  BatchNormKernels* batch_norm_kernels = nullptr;
  // Over whose ranks batch norm normalises in training; null: this rank's batch
  // alone.
  Communicator* batch_norm_group = nullptr;
};

// One operation's work on one batch size, prepared once and run every step.
// Memory is the caller's: host memory, aligned to 64 bytes but for a network's
// input, activations of the context's type and layout. A plan has no state
// between calls. Not thread safe.
class OperationPlan {
 public:
  struct Forwards {
    const void* x;       // The first input.
    const void* second;  // The second input; null if there is none.
    void* y;             // Overwritten.
    void* saved;         // [saved_bytes], kept until the backward call.
    void* scratch;       // [scratch_bytes], free between calls.
    bool training;       // Else buffers are used and left alone.
    const Batch* batch;  // For the keys of random masks.
  };
  struct Backwards {
    const void* x;       // As forward had them and left them, where
    const void* second;  // backward_reads_x or _y says so; else unspecified.
    const void* y;
    void* saved;
    void* dy;       // The gradient of y; unspecified afterwards.
    void* dx;       // Overwritten; null if not wanted.
    void* dsecond;  // Likewise.
    void* scratch;
    const Batch* batch;
  };

  virtual ~OperationPlan() = default;

  // Errors: kInternal, naming the operation, if oneDNN fails; those of the
  // batch norm group, in training.
  virtual absl::Status Forward(const Forwards& buffers) = 0;

  // Overwrites the gradients of the operation's parameters and calls `ready`
  // for each, before dx is computed where that can be. Errors as above.
  virtual absl::Status Backward(const Backwards& buffers,
                                Model::GradientReady ready) = 0;

  // Set by the constructors alone.
  // The algorithm where there is a choice, for reports; if directions differ,
  // that of forward, of the weights' and of the input's gradient.
  std::string chosen;
  int64_t saved_bytes = 0;
  int64_t scratch_bytes = 0;
  bool backward_reads_x = true;  // And the second input.
  bool backward_reads_y = false;
  bool dx_may_be_dy = false;       // dx may lie in dy's memory.
  bool dsecond_may_be_dy = false;  // dsecond may, and dx then does not.
};

// What to plan: an operation, its inputs for a batch (n >= 0), its output.
struct PlanRequest {
  const Network::Operation* operation;
  Shape x;
  Shape output;
  bool input_gradient;  // Whether backward computes dx.
};

// The plan of any operation. For n = 0 it computes nothing but zero gradients,
// though a batch norm still takes part in what ranks do together. Takes
// milliseconds: keep it. Errors: kInternal, naming the operation, if oneDNN
// fails.
using PlanOr = absl::StatusOr<std::unique_ptr<OperationPlan>>;
PlanOr CreatePlan(const PlanContext& context, const PlanRequest& request);

// By family: linear.cc (convolution and linear), norm.cc, attention.cc, pool.cc
// and pointwise.cc. `request` holds that kind.
PlanOr PlanConvolution(const PlanContext& context, const PlanRequest& request);
PlanOr PlanLinear(const PlanContext& context, const PlanRequest& request);
PlanOr PlanBatchNorm(const PlanContext& context, const PlanRequest& request);
PlanOr PlanLayerNorm(const PlanContext& context, const PlanRequest& request);
PlanOr PlanAttention(const PlanContext& context, const PlanRequest& request);
PlanOr PlanPool(const PlanContext& context, const PlanRequest& request);
PlanOr PlanGelu(const PlanContext& context, const PlanRequest& request);
PlanOr PlanEmbed(const PlanContext& context, const PlanRequest& request);
PlanOr PlanFirstPosition(const PlanContext& context,
                         const PlanRequest& request);
PlanOr PlanDropout(const PlanContext& context, const PlanRequest& request);
PlanOr PlanAdd(const PlanContext& context, const PlanRequest& request);

// Of PlanConvolution: whether the images are so small, and the weights so many,
// that this is faster, and the plan (few_pixels.cc).
bool HasFewPixels(const PlanContext& context, const PlanRequest& request);
PlanOr PlanFewPixels(const PlanContext& context, const PlanRequest& request);

// What `make`, which may throw dnnl::error, returns for the operation; for a
// batch without samples a plan that gives zero gradients to the parameters of
// `indices`, in the order given.
PlanOr MakePlan(const PlanContext& context, const PlanRequest& request,
                std::vector<int> indices,
                absl::FunctionRef<std::unique_ptr<OperationPlan>()> make);

// Dropout, which several operations have: to[i] = from[i] / (1 - rate) where
// the layer's mask keeps it, else 0. Both [n, size] of `type`, perhaps the same
// memory. The gradient is the same of the gradient. The mask of a sample is
// random numbers keyed by the batch's seed and step, the sample and the layer,
// so neither by rank nor by place in the batch.
void DropOut(const Batch& batch, int layer, double rate, DataType type,
             int64_t n, int64_t size, const void* from, void* to);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_PLAN_H_
