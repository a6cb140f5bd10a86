// Batch normalisation of a rank's own batch through oneDNN.
#ifndef LOCKSTEP_SYNCBN_CPU_ONEDNN_BATCH_NORM_H_
#define LOCKSTEP_SYNCBN_CPU_ONEDNN_BATCH_NORM_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "collectives/collective.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "syncbn/batch_norm.h"
#include "syncbn/batch_norm_kernels.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"
#include "syncbn/cpu/workspace.h"

namespace lockstep {

// A BatchNorm in host memory that never communicates. It supports float32, and
// bfloat16 if oneDNN supports that on this processor. Other types return
// kUnimplemented, naming the type.
//
// In training, ReLU is oneDNN's own, unless x is y, there is a residual, or a
// number is not finite: oneDNN's ReLU turns NaN into 0. In these cases, and for
// the residual and for ReLU's gradient, the layer makes one more pass, and a
// bfloat16 output with a residual is rounded twice. Uses oneDNN's threads.
// Keeps what oneDNN prepares for a shape for the next call with that shape.
class OnednnBatchNorm : public BatchNorm {
 public:
  // Errors: those of CheckBatchNormOptions; kInternal from oneDNN.
  static absl::StatusOr<std::unique_ptr<OnednnBatchNorm>> Create(
      const BatchNormOptions& options);

  // Returns the size of the same record as SyncBatchNorm's.
  int64_t SavedBytes(DataType type) const override;

  // Errors, besides BatchNorm's: kInternal from oneDNN.
  absl::Status Forward(const ForwardBuffers& buffers) override;
  absl::Status Backward(const BackwardBuffers& buffers,
                        absl::FunctionRef<void()> gradients_ready) override;

 private:
  // A primitive for one shape.
  struct Plan {
    ActivationShape shape;
    DataType type;
    dnnl::prop_kind kind;
    dnnl::normalization_flags flags;
    dnnl::primitive primitive = {};
    dnnl::memory::desc data;
    dnnl::memory::desc scratchpad = {};
    // With ReLU: the workspace that its gradient would need.
    bool has_workspace = false;
    dnnl::memory::desc workspace = {};
  };
  explicit OnednnBatchNorm(const BatchNormOptions& options);

  absl::Status ForwardRunning(const ForwardBuffers& buffers);
  absl::Status ForwardBatch(const ForwardBuffers& buffers);
  // Writes the normalised x to `normal`, after ReLU if the flags include it. In
  // training, computes the batch's mean and variance and writes them too.
  absl::Status Normalize(const ForwardBuffers& buffers, const Buffer& normal,
                         dnnl::prop_kind kind, dnnl::normalization_flags flags,
                         const void* mean, const void* variance);
  // Writes `saved` and the running statistics.
  absl::Status SaveBatch(const ForwardBuffers& buffers, const float* mean,
                         const float* variance);
  absl::Status RunBackward(const BackwardBuffers& buffers,
                           const ConstBuffer& g);
  // Returns y, or other memory if the residual is in y.
  absl::StatusOr<Buffer> ChooseNormalBuffer(const ForwardBuffers& buffers);

  // PlanFor and the functions after it throw dnnl::error.
  const Plan& PlanFor(const ActivationShape& shape, DataType type,
                      dnnl::prop_kind kind, dnnl::normalization_flags flags);
  absl::Status Execute(const Plan& plan,
                       std::unordered_map<int, dnnl::memory> arguments);
  // Return memory objects. A primitive that only reads does not write to them.
  dnnl::memory Activations(const Plan& plan, const void* data);
  dnnl::memory Vector(const void* data);

  const BatchNormOptions options_;
  CpuBatchNormKernels kernels_;  // Used for the statistics.
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<Plan> plans_;
  Scratch work_;        // The primitives' scratchpad.
  Scratch statistics_;  // [2, c].
  Scratch record_;
  Scratch normal_;  // Used if the residual is in y.
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_ONEDNN_BATCH_NORM_H_
