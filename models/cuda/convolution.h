// Convolutions on a GPU: cuDNN's graphs for a training step, and cuDNN's plans
// for these graphs.
#ifndef LOCKSTEP_MODELS_CUDA_CONVOLUTION_H_
#define LOCKSTEP_MODELS_CUDA_CONVOLUTION_H_

#include <cudnn.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "models/cuda/cudnn_plan.h"
#include "models/cuda/precision.h"
#include "syncbn/batch_norm.h"

namespace lockstep {

enum class ConvolutionPass {
  kForward,         // Computes y from x and w.
  kInputGradient,   // Computes dx from dy and w.
  kWeightGradient,  // Computes dw from dy and x.
};
const char* Name(ConvolutionPass pass);  // "forward", ...

// One convolution of a training step, a cross-correlation with zeros around x.
// x is [n, c, h, w], w is [out_channels, c, kernel, kernel], and y is [n,
// out_channels, h', w']. h' = (h + 2 padding - kernel) / stride + 1, and w'
// likewise.
struct ConvolutionGraph {
  std::string name = {};  // For messages: "resnet18_d2l resnet_block2.0.conv1".
  ConvolutionPass pass = ConvolutionPass::kForward;
  ConvolutionPrecision precision = ConvolutionPrecision::kBFloat16;
  // The memory layout of x, y and their gradients. Weights use the same layout:
  // [k, r, s, c] for kNhwc.
  Layout layout = Layout::kNhwc;
  int64_t n = 1, c = 1, h = 1, w = 1;
  int64_t out_channels = 1;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  // bias: y += bias [out_channels]. relu: then y = max(y, 0). Both only in the
  // forward pass.
  bool bias = false;
  bool relu = false;
  // The data type of the pass's result, if it differs from the inputs' type.
  std::optional<DataType> written = {};

  int64_t out_h() const { return (h + 2 * padding - kernel) / stride + 1; }
  int64_t out_w() const { return (w + 2 * padding - kernel) / stride + 1; }
};
// Returns, for example, "resnet18_d2l 0: forward bfloat16 nhwc [256,1,28,28]
// 64@3x3/1".
std::string Describe(const ConvolutionGraph& graph);

// The device memory of one execution, aligned to 16 bytes, borrowed. The pass
// writes its result and reads the other operands. bias is null unless the graph
// has a bias.
struct ConvolutionOperands {
  void* x = nullptr;  // x, or dx for kInputGradient.
  void* w = nullptr;  // w, or dw for kWeightGradient.
  void* y = nullptr;  // y, or dy for the gradients.
  void* bias = nullptr;
};

// The plan of a convolution, whose engine keeps the graph's precision.
// Nondeterministic engines are excluded: the same inputs give the same bits in
// every run.
class ConvolutionPlan {
 public:
  // Costs what CudnnPlan::Create does. Every error begins with Describe(graph).
  // Errors: kInvalidArgument for a graph that makes no sense; kUnimplemented
  // for kNchw16c; those of CudnnPlan::Create.
  static absl::StatusOr<ConvolutionPlan> Create(const CudnnDevice& device,
                                                const ConvolutionGraph& graph);

  const std::string& engine() const { return plan_.engine(); }
  int64_t workspace_bytes() const { return plan_.workspace_bytes(); }
  const std::string& notes() const { return plan_.notes(); }
  int rejected_count() const { return plan_.rejected_count(); }

  // Enqueues the pass, as CudnnPlan::Execute does. Every error begins with
  // Describe(graph).
  absl::Status Execute(cudnnHandle_t handle,
                       const ConvolutionOperands& operands,
                       void* workspace) const;

 private:
  ConvolutionPlan(ConvolutionGraph graph, CudnnPlan plan)
      : graph_(std::move(graph)), plan_(std::move(plan)) {}

  ConvolutionGraph graph_;
  CudnnPlan plan_;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_CONVOLUTION_H_
