// Convolutions on a GPU: cuDNN's graphs for a training step, and cuDNN's plans
// for these graphs. A plan is made for an installed card or for a described
// one.
#ifndef LOCKSTEP_MODELS_CUDA_CONVOLUTION_H_
#define LOCKSTEP_MODELS_CUDA_CONVOLUTION_H_

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "models/cuda/precision.h"
#include "syncbn/batch_norm.h"

namespace lockstep {

struct DestroyCudnnDescriptor {
  void operator()(void* descriptor) const {
    cudnnBackendDestroyDescriptor(descriptor);
  }
};
// A descriptor of cuDNN's backend. cuDNN keeps alive the descriptors that a
// descriptor refers to.
using CudnnDescriptor = std::unique_ptr<void, DestroyCudnnDescriptor>;

// A card that plans are made for. Movable; plans do not refer to the object.
class CudnnDevice {
 public:
  // Returns the card of `handle`, which is borrowed for the call. Errors:
  // cuDNN's.
  static absl::StatusOr<CudnnDevice> OfHandle(cudnnHandle_t handle);

  // Returns a card that is described by JSON in the format of Description().
  // Needs neither a GPU nor a driver. cuDNN does not verify the description.
  // Errors: kInvalidArgument if cuDNN (9.8 or later) does not accept the JSON.
  static absl::StatusOr<CudnnDevice> OfDescription(absl::string_view json);

  // Returns, as JSON, everything that cuDNN reads about a card to choose and
  // build plans.
  absl::StatusOr<std::string> Description() const;

  cudnnBackendDescriptor_t descriptor() const { return descriptor_.get(); }

 private:
  explicit CudnnDevice(CudnnDescriptor descriptor)
      : descriptor_(std::move(descriptor)) {}

  CudnnDescriptor descriptor_;
};

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

// cuDNN's way to compute a graph on a card. A plan is the first configuration
// from cuDNN's heuristics that cuDNN can build and that keeps the graph's
// precision. Nondeterministic configurations are excluded: the same inputs give
// the same bits in every run.
class ConvolutionPlan {
 public:
  // Takes milliseconds, or longer if the engine is compiled at run time: keep
  // the plan. Does not use the card. Every error begins with Describe(graph).
  // Errors: kInvalidArgument for a graph that makes no sense; kUnimplemented
  // for kNchw16c, or if cuDNN has no plan. The message then gives the number of
  // configurations tried and cuDNN's last error.
  static absl::StatusOr<ConvolutionPlan> Create(const CudnnDevice& device,
                                                const ConvolutionGraph& graph);

  // The engine's number in cuDNN and its settings: "eng46 k2=16 k6=3".
  const std::string& engine() const { return engine_; }
  // The size of the device memory that an execution needs besides its operands.
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // cuDNN's notes about the engine: "tensor core, runtime compilation".
  const std::string& notes() const { return notes_; }
  // The number of the heuristics' configurations that were rejected before this
  // one.
  int rejected_count() const { return rejected_count_; }

  // Enqueues the pass on the handle's stream. The handle must belong to the
  // card that the plan was made for. workspace: workspace_bytes() of device
  // memory, aligned to 16 bytes; it is free again when the stream has finished
  // this pass. Errors: cuDNN's, beginning with Describe(graph). Not thread safe
  // on one handle.
  absl::Status Execute(cudnnHandle_t handle,
                       const ConvolutionOperands& operands,
                       void* workspace) const;

 private:
  ConvolutionPlan() = default;

  std::string graph_;  // Describe(graph).
  bool bias_ = false;
  // The graph's descriptors, which plan_ uses.
  std::vector<CudnnDescriptor> parts_;
  CudnnDescriptor plan_;
  std::string engine_, notes_;
  int64_t workspace_bytes_ = 0;
  int rejected_count_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_CONVOLUTION_H_
