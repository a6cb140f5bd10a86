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

// A BatchNorm that never communicates, in host memory: for float32, and for
// bfloat16 where oneDNN has it on this processor; else kUnimplemented, naming
// the type. ReLU is oneDNN's own in training, unless x is y, there is a
// residual, or a number is not finite: oneDNN's makes 0 of NaN. Otherwise, and
// for the residual and ReLU's gradient, it takes one more pass, and a bfloat16
// output with a residual is rounded twice. Uses oneDNN's threads. What oneDNN
// prepares for a shape is kept for the next call with it.
class OnednnBatchNorm : public BatchNorm {
 public:
  // Errors: those of CheckBatchNormOptions; kInternal from oneDNN.
  static absl::StatusOr<std::unique_ptr<OnednnBatchNorm>> Create(
      const BatchNormOptions& options);

  // The record that SyncBatchNorm has.
  int64_t SavedBytes(DataType type) const override;

  // Errors, beside BatchNorm's: kInternal from oneDNN.
  absl::Status Forward(const Forwards& buffers) override;
  absl::Status Backward(const Backwards& buffers,
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
    // With ReLU: what its gradient would need.
    bool has_workspace = false;
    dnnl::memory::desc workspace = {};
  };
  explicit OnednnBatchNorm(const BatchNormOptions& options);

  absl::Status ForwardRunning(const Forwards& buffers);
  absl::Status ForwardBatch(const Forwards& buffers);
  // Writes x normalised, and after ReLU where the flags say so, to `normal`. In
  // training, mean and variance are the batch's and written too.
  absl::Status Normalize(const Forwards& buffers, const Buffer& normal,
                         dnnl::prop_kind kind, dnnl::normalization_flags flags,
                         const void* mean, const void* variance);
  // Writes `saved` and the running statistics.
  absl::Status SaveBatch(const Forwards& buffers, const float* mean,
                         const float* variance);
  absl::Status BackwardOf(const Backwards& buffers, const ConstBuffer& g);
  // y, or other memory where the residual is in y.
  absl::StatusOr<Buffer> NormalFor(const Forwards& buffers);

  // These throw dnnl::error.
  const Plan& PlanFor(const ActivationShape& shape, DataType type,
                      dnnl::prop_kind kind, dnnl::normalization_flags flags);
  absl::Status Execute(const Plan& plan,
                       std::unordered_map<int, dnnl::memory> arguments);
  // Memory objects, which are not written where the primitive only reads them.
  dnnl::memory Activations(const Plan& plan, const void* data);
  dnnl::memory Vector(const void* data);

  const BatchNormOptions options_;
  CpuBatchNormKernels kernels_;  // For statistics.
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<Plan> plans_;
  Scratch work_;        // Of primitives.
  Scratch statistics_;  // [2, c].
  Scratch record_;
  Scratch normal_;  // Where the residual is in y.
};

}  // namespace lockstep

#endif  // LOCKSTEP_SYNCBN_CPU_ONEDNN_BATCH_NORM_H_
