// The work of one operation for one batch size: the interface that program.h
// drives.
#ifndef LOCKSTEP_MODELS_PROGRAM_OPERATION_PLAN_H_
#define LOCKSTEP_MODELS_PROGRAM_OPERATION_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/random_mask.h"

namespace lockstep {

// One operation's work on one batch size, prepared once and run every step. The
// caller owns the memory: host memory for a CPU, device memory for a GPU. It is
// aligned to 64 bytes except for a network's input. The kind of plan says which
// type and layout activations have. On a GPU the calls only enqueue work. A
// plan has no state between calls. Not thread safe.
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

  // Computes y. Errors: those of the device's library, naming the operation; in
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

// Returns the request for an operation of the network and a batch of n.
inline PlanRequest RequestFor(const Network& network,
                              const Network::Operation& operation, int64_t n) {
  PlanRequest request = {.operation = &operation,
                         .x = network.ShapeOf(operation.inputs[0]),
                         .output = operation.output,
                         .input_gradient = operation.inputs[0] != 0};
  request.x.n = n;
  request.output.n = n;
  return request;
}

// Returns the key of a layer's masks. The batch's sample numbers are in the
// memory of the device that computes.
inline MaskKey MaskKeyOf(const Batch& batch, int layer, double rate) {
  return {.seed = batch.seed,
          .step = batch.step,
          .samples = batch.samples.empty() ? nullptr : batch.samples.data(),
          .layer = layer,
          .rate = rate};
}

using PlanOr = absl::StatusOr<std::unique_ptr<OperationPlan>>;

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_PROGRAM_OPERATION_PLAN_H_
