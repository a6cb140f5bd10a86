// Layers on the CPU: what one is, something that plans its work for a batch
// size, and those that networks are made of.
#ifndef LOCKSTEP_MODELS_CPU_LAYERS_H_
#define LOCKSTEP_MODELS_CPU_LAYERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/model.h"

namespace lockstep {

struct LayerContext;  // What the layers of one replica share (onednn.h).

// N images of C channels. Activations lie channels last: element (n, c, h, w)
// is at ((n * H + h) * W + w) * C + c, without gaps.
struct Shape {
  int64_t n = 0;
  int64_t c = 0;
  int64_t h = 1;
  int64_t w = 1;

  int64_t size() const { return n * c * h * w; }
  friend bool operator==(const Shape&, const Shape&) = default;
};

// One layer's work on one input shape, prepared once and run every step. All
// memory is the caller's: host float32, 64-byte aligned except for `x` of the
// first layer, channels last. A plan holds no state between calls, so that
// plans for several batch sizes can take turns on the same memory. Not thread
// safe.
class LayerPlan {
 public:
  // The memory of one call, borrowed.
  struct Forwards {
    const float* x;    // [input shape].
    float* y;          // [output], overwritten.
    float* saved;      // [saved_size], kept until the backward call.
    float* temporary;  // [temporary_size], free between calls.
    bool training;     // Else the layer's buffers are used and left alone.
  };
  struct Backwards {
    const float* x;    // As forward had it.
    const float* y;    // As forward left it.
    float* saved;      // As forward left it.
    float* dy;         // [output], the gradient of y; unspecified afterwards.
    float* dx;         // [input shape], overwritten; null if not planned.
    float* temporary;  // As in Forwards.
  };

  explicit LayerPlan(const Shape& output) : output(output) {}
  virtual ~LayerPlan() = default;

  // Errors: kInternal, naming the layer, if oneDNN fails; those of
  // batch_norm_group, in training.
  virtual absl::Status Forward(const Forwards& buffers) = 0;

  // Overwrites the gradients of the layer's parameters and calls `ready` for
  // each, the highest index first and before dx is computed; a layer of layers
  // does so for one after the other. Errors as above.
  virtual absl::Status Backward(const Backwards& buffers,
                                Model::GradientReady ready) = 0;

  // Set by the constructors alone.
  const Shape output;
  int64_t saved_size = 0;      // Floats.
  int64_t temporary_size = 0;  // Floats.
};

// A layer's description. It knows its parameters and buffers by their indices;
// it has no other state.
struct Layer {
  // Prepares for `input`, with input.n >= 0: a rank without samples still takes
  // its part in what ranks do together, and has zero gradients. Backward
  // computes dx only if `input_gradient`. Does not communicate. Takes
  // milliseconds: keep the plan. Errors, each naming the layer:
  // kInvalidArgument if the input or the sizes of the parameters do not fit it;
  // kInternal if oneDNN fails.
  std::function<absl::StatusOr<std::unique_ptr<LayerPlan>>(
      const LayerContext& context, const Shape& input, bool input_gradient)>
      plan;
  int batch_norm_count = 0;  // How many batch norm layers there are in it.
};

// The plan of a layer for a batch without samples. It computes nothing:
// backward it zeroes the gradients of `parameters[index]` for each of `indices`
// and calls `ready` for them, in the order given. Borrows `parameters`.
std::unique_ptr<LayerPlan> CreateEmptyPlan(Parameters& parameters,
                                           std::vector<int> indices,
                                           const Shape& output);

// Errors: kInvalidArgument, naming the layer, unless there is a tensor `index`
// and it has the shape `want`.
absl::Status CheckParameter(const std::string& layer,
                            const Parameters& parameters, int index,
                            const std::vector<int64_t>& want);
absl::Status CheckBuffer(const std::string& layer, const Buffers& buffers,
                         int index, const std::vector<int64_t>& want);

// Each function below describes a layer: nothing is computed, or checked,
// before it is planned (Layer::plan).

// 2-D convolution with bias, perhaps followed by ReLU. `name` in these options
// is for messages; `weights`, `bias` and so on are indices into Parameters.
struct ConvolutionOptions {
  std::string name;
  int weights = 0;  // [out_channels, c, kernel, kernel].
  int bias = 0;     // [out_channels].
  int64_t out_channels = 1;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;  // Zeros on each side.
  bool relu = false;
};

// A convolution that is planned, and what it is applied to.
struct ConvolutionCall {
  ConvolutionOptions options;
  Shape input;
  bool input_gradient;  // Whether backward computes dx.
};

// What a network's plan has of these layers, in the order of planning.
struct PlannedCalls {
  std::vector<ConvolutionCall> convolutions;
  std::vector<Shape> batch_norms;  // Their inputs.
};

// [n, c, h, w] -> [n, out_channels, h', w'] with
// h' = (h + 2 padding - kernel) / stride + 1, w' alike: a cross-correlation, as
// PyTorch's conv2d. With ReLU a NaN becomes 0.
Layer CreateConvolution(ConvolutionOptions options);

// Fully connected layer, perhaps followed by ReLU.
struct LinearOptions {
  std::string name;
  int weights = 0;  // [c * h * w, out_features]: y = x W + b.
  int bias = 0;     // [out_features].
  int64_t out_features = 1;
  bool relu = false;
  // The weights are [out_features, c * h * w] instead, as torch.nn.Linear
  // stores them: y = x W^T + b.
  bool outputs_first = false;
};

// [n, c, h, w] -> [n, out_features, 1, 1]. The weights' rows (or columns, with
// outputs_first) count the features of a sample in the order c, h, w (what
// PyTorch's flatten gives), although the activations lie channels last. With
// ReLU a NaN becomes 0.
Layer CreateLinear(LinearOptions options);

// Average pooling over windows that do not overlap:
// [n, c, h, w] -> [n, c, h / window, w / window]; rows and columns left over at
// the end are dropped, as PyTorch's avg_pool2d with stride = window.
Layer CreateAveragePool(std::string name, int64_t window);

// Average pooling over whole images: [n, c, h, w] -> [n, c, 1, 1], as PyTorch's
// AdaptiveAvgPool2d((1, 1)).
Layer CreateGlobalAveragePool(std::string name);

// torch.nn.BatchNorm2d with its defaults (momentum 0.1, epsilon 1e-5, affine,
// tracked), followed by ReLU.
struct BatchNormLayerOptions {
  std::string name;
  int weight = 0;        // [c].
  int bias = 0;          // [c]; a higher index than weight's.
  int running_mean = 0;  // Indices into Buffers, each [c].
  int running_variance = 0;
  int batches = 0;  // Index of the counter num_batches_tracked.
};

// [n, c, h, w] -> the same. Its messages, and the errors that come with them,
// are those of SyncBatchNorm where the context has a batch_norm_group.
Layer CreateBatchNormLayer(BatchNormLayerOptions options);

// Layers one after the other, themselves a layer. layers: at least one, each
// fitting the output of the one before. Saves their outputs between forward and
// backward; temporary space is shared by all.
Layer CreateSequential(std::string name, std::vector<Layer> layers);

// The residual block of ResNet-18 and ResNet-34. The parts are named as d2l's
// Residual names them; the block sets the convolutions' `relu`.
struct ResidualOptions {
  std::string name;
  ConvolutionOptions conv1, conv2;
  std::optional<ConvolutionOptions> conv3;  // Of the shortcut; none: identity.
  BatchNormLayerOptions bn1, bn2;
};

// y = relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x)), the last addition
// and ReLU being part of bn2. Gradients are ready in the order bn2, conv3,
// conv2, bn1, conv1. Planning fails with kInvalidArgument if the shortcut's
// output does not have the shape of the convolutions'.
Layer CreateResidual(ResidualOptions options);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_LAYERS_H_
