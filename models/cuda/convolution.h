// Convolutions on a GPU: cuDNN's graphs for a training step, and the plans that
// cuDNN makes for them, on a card that is there or on one that is described.
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
#include "syncbn/batch_norm.h"

namespace lockstep {

struct DestroyCudnnDescriptor {
  void operator()(void* descriptor) const {
    cudnnBackendDestroyDescriptor(descriptor);
  }
};
// A descriptor of cuDNN's backend. cuDNN keeps what a descriptor refers to.
using CudnnDescriptor = std::unique_ptr<void, DestroyCudnnDescriptor>;

// A card that plans are made for. Movable; plans do not refer to it.
class CudnnDevice {
 public:
  // The card of a handle, which is borrowed for the call. Errors: cuDNN's.
  static absl::StatusOr<CudnnDevice> OfHandle(cudnnHandle_t handle);

  // A card that is described in the JSON that Description() gives: neither a
  // GPU nor a driver is needed. What cuDNN is told here it believes. Errors:
  // kInvalidArgument if cuDNN (9.8 or later) does not take it.
  static absl::StatusOr<CudnnDevice> OfDescription(absl::string_view json);

  // All that cuDNN asks of a card to choose and build plans.
  absl::StatusOr<std::string> Description() const;

  cudnnBackendDescriptor_t descriptor() const { return descriptor_.get(); }

 private:
  explicit CudnnDevice(CudnnDescriptor descriptor)
      : descriptor_(std::move(descriptor)) {}

  CudnnDescriptor descriptor_;
};

enum class ConvolutionPass {
  kForward,         // y from x and w.
  kInputGradient,   // dx from dy and w.
  kWeightGradient,  // dw from dy and x.
};
const char* Name(ConvolutionPass pass);  // "forward", ...

// The type of all tensors, and what products may be rounded to. Sums are
// float32's.
enum class ConvolutionPrecision {
  kFloat32,  // No engine that rounds its inputs.
  kTf32,     // float32 in memory; products of TF32 where an engine has them.
  kFloat16,
  kBFloat16,
};
const char* Name(ConvolutionPrecision precision);  // "float32", "tf32", ...
DataType TypeOf(ConvolutionPrecision precision);

// One convolution of a training step, a cross-correlation with zeros around x:
// x [n, c, h, w], w [out_channels, c, kernel, kernel], y [n, out_channels, h',
// w'] with h' = (h + 2 padding - kernel) / stride + 1, w' alike.
struct ConvolutionGraph {
  std::string name = {};  // For messages: "resnet18_d2l resnet_block2.0.conv1".
  ConvolutionPass pass = ConvolutionPass::kForward;
  ConvolutionPrecision precision = ConvolutionPrecision::kBFloat16;
  // Of x, y and their gradients; weights lie alike: [k, r, s, c] for kNhwc.
  Layout layout = Layout::kNhwc;
  int64_t n = 1, c = 1, h = 1, w = 1;
  int64_t out_channels = 1;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  // y += bias [out_channels], then y = max(y, 0); forward alone.
  bool bias = false;
  bool relu = false;
  // The type of what is written, where it is not that of what is read.
  std::optional<DataType> written = {};

  int64_t out_h() const { return (h + 2 * padding - kernel) / stride + 1; }
  int64_t out_w() const { return (w + 2 * padding - kernel) / stride + 1; }
};
// "resnet18_d2l 0: forward bfloat16 nhwc [256,1,28,28] 64@3x3/1".
std::string Describe(const ConvolutionGraph& graph);

// Device memory of one execution, aligned to 16, borrowed. The pass writes its
// own and reads the others; bias is null unless the graph has one.
struct ConvolutionOperands {
  void* x = nullptr;  // Or dx.
  void* w = nullptr;  // Or dw.
  void* y = nullptr;  // Or dy.
  void* bias = nullptr;
};

// How cuDNN computes a graph on a card: the first configuration of its
// heuristics for which it has code and which keeps the graph's precision. Never
// a nondeterministic one: the same inputs give the same bits in every run.
class ConvolutionPlan {
 public:
  // Takes milliseconds, for engines that are compiled then more: keep the plan.
  // Does not use the card. Errors, beginning with Describe(graph):
  // kInvalidArgument for a graph that makes no sense, kUnimplemented for
  // kNchw16c, and if cuDNN has no plan, with how many it tried and what it said
  // last.
  static absl::StatusOr<ConvolutionPlan> Create(const CudnnDevice& device,
                                                const ConvolutionGraph& graph);

  // cuDNN's number for the engine and its settings: "eng46 k2=16 k6=3".
  const std::string& engine() const { return engine_; }
  // Device memory that an execution needs beside its operands.
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // What cuDNN says of the engine: "tensor core, runtime compilation".
  const std::string& notes() const { return notes_; }
  // Of the configurations that the heuristics gave, the number passed over.
  int passed_over() const { return passed_over_; }

  // Enqueues on the handle's stream; the handle is of the card that the plan
  // was made for. workspace: workspace_bytes() of device memory, aligned to
  // 16, which is free again when the stream has done this. Errors: cuDNN's,
  // beginning with Describe(graph). Not thread safe on one handle.
  absl::Status Execute(cudnnHandle_t handle,
                       const ConvolutionOperands& operands,
                       void* workspace) const;

 private:
  ConvolutionPlan() = default;

  std::string graph_;  // Described.
  bool bias_ = false;
  std::vector<CudnnDescriptor> parts_;  // Of the graph, which the plan is of.
  CudnnDescriptor plan_;
  std::string engine_, notes_;
  int64_t workspace_bytes_ = 0;
  int passed_over_ = 0;
};

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CUDA_CONVOLUTION_H_
