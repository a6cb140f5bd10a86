// The layers that networks are made of. Each function describes one: nothing is
// computed, or checked, before it is planned (Layer::Plan).
#ifndef LOCKSTEP_MODELS_CPU_LAYERS_H_
#define LOCKSTEP_MODELS_CPU_LAYERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/cpu/layer.h"

namespace lockstep {

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

// [n, c, h, w] -> [n, out_channels, h', w'] with
// h' = (h + 2 padding - kernel) / stride + 1, w' alike: a cross-correlation, as
// PyTorch's conv2d. With ReLU a NaN becomes 0.
std::unique_ptr<Layer> CreateConvolution(ConvolutionOptions options);

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
std::unique_ptr<Layer> CreateLinear(LinearOptions options);

// Average pooling over windows that do not overlap:
// [n, c, h, w] -> [n, c, h / window, w / window]; rows and columns left over at
// the end are dropped, as PyTorch's avg_pool2d with stride = window.
std::unique_ptr<Layer> CreateAveragePool(std::string name, int64_t window);

// Average pooling over whole images: [n, c, h, w] -> [n, c, 1, 1], as PyTorch's
// AdaptiveAvgPool2d((1, 1)).
std::unique_ptr<Layer> CreateGlobalAveragePool(std::string name);

// torch.nn.BatchNorm2d with its defaults (momentum 0.1, epsilon 1e-5, affine,
// tracked), perhaps followed by ReLU.
struct BatchNormLayerOptions {
  std::string name;
  int weight = 0;        // [c].
  int bias = 0;          // [c]; a higher index than weight's.
  int running_mean = 0;  // Indices into Buffers, each [c].
  int running_variance = 0;
  int batches = 0;  // Index of the counter num_batches_tracked.
  bool relu = false;
};

// [n, c, h, w] -> the same. Its messages, and the errors that come with them,
// are those of SyncBatchNorm where the context has a batch_norm_group.
std::unique_ptr<Layer> CreateBatchNormLayer(BatchNormLayerOptions options);

// Layers one after the other, themselves a layer. layers: at least one, each
// fitting the output of the one before. Saves their outputs between forward and
// backward; temporary space is shared by all.
std::unique_ptr<Layer> CreateSequential(
    std::string name, std::vector<std::unique_ptr<Layer>> layers);

// The residual block of ResNet-18 and ResNet-34. The parts are named as d2l's
// Residual names them; the block sets their `relu`.
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
std::unique_ptr<Layer> CreateResidual(ResidualOptions options);

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_LAYERS_H_
