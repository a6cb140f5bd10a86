// 2-D convolution with bias, perhaps followed by ReLU.
#ifndef LOCKSTEP_MODELS_CPU_LAYERS_H_
#define LOCKSTEP_MODELS_CPU_LAYERS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/cpu/layer.h"
#include "models/model.h"
#include "syncbn/batch_norm.h"

namespace lockstep {

struct ConvolutionOptions {
  std::string name;  // For messages.
  int weights = 0;   // Index of [out_channels, c, kernel, kernel].
  int bias = 0;      // Index of [out_channels].
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
  std::string name;  // For messages.
  int weights = 0;   // Index of [c * h * w, out_features]: y = x W + b.
  int bias = 0;      // Index of [out_features].
  int64_t out_features = 1;
  bool relu = false;
  // The weights are [out_features, c * h * w] instead, as torch.nn.Linear
  // stores them: y = x W^T + b.
  bool outputs_first = false;
};

// [n, c, h, w] -> [n, out_features, 1, 1]. The weights' rows (or columns, with
// outputs_first) count the features
// of a sample in the order c, h, w (what PyTorch's flatten gives), although the
// activations lie channels last. With ReLU a NaN becomes 0.
std::unique_ptr<Layer> CreateLinear(LinearOptions options);

// Average pooling, over windows that do not overlap or over whole images.

// [n, c, h, w] -> [n, c, h / window, w / window]; rows and columns left over at
// the end are dropped, as PyTorch's avg_pool2d with stride = window.
std::unique_ptr<Layer> CreateAveragePool(std::string name, int64_t window);

// [n, c, h, w] -> [n, c, 1, 1]: the average over each image, as PyTorch's
// AdaptiveAvgPool2d((1, 1)).
std::unique_ptr<Layer> CreateGlobalAveragePool(std::string name);

// Batch normalisation as a layer, perhaps with a residual and ReLU.

// torch.nn.BatchNorm2d with its defaults (momentum 0.1, epsilon 1e-5, affine,
// tracked), followed by ReLU if `relu`.
struct BatchNormLayerOptions {
  std::string name;      // For messages.
  int weight = 0;        // Indices into Parameters, each [c]; the bias's is the
  int bias = 0;          // higher.
  int running_mean = 0;  // Indices into Buffers, each [c].
  int running_variance = 0;
  int batches = 0;  // Index of the counter num_batches_tracked.
  bool relu = false;
};

// Its plan. `saved` holds the batch's statistics. In training on a group every
// rank runs Forward and Backward at the same time; messages wait for each
// other, planning sends none. Errors, beside LayerPlan's: kInvalidArgument for
// a batch of one value per channel, over all ranks, in training.
class BatchNormPlan : public LayerPlan {
 public:
  BatchNormPlan(const LayerContext& context, BatchNormLayerOptions options,
                const Shape& shape, std::unique_ptr<BatchNorm> batch_norm);

  const Shape& output() const override { return shape_; }
  int64_t saved_size() const override;
  int64_t temporary_size() const override { return 0; }

  absl::Status Forward(const Forwards& buffers) override {
    return ForwardAdding(buffers, /*residual=*/nullptr);
  }
  absl::Status Backward(const Backwards& buffers,
                        Model::GradientReady ready) override {
    return BackwardAdding(buffers, /*dresidual=*/nullptr, ready);
  }

  // Forward with `residual`, [output()], added before ReLU; it may be the
  // memory of y. Null: none.
  absl::Status ForwardAdding(const Forwards& buffers, const float* residual);

  // Backward that also overwrites `dresidual`, [output()], with the residual's
  // gradient; dx or dresidual may be the memory of dy. Null: not wanted.
  absl::Status BackwardAdding(const Backwards& buffers, float* dresidual,
                              Model::GradientReady ready);

 private:
  LayerContext context_;
  BatchNormLayerOptions options_;
  Shape shape_;
  std::unique_ptr<BatchNorm> batch_norm_;
};

// As Layer::Plan. With or without context.batch_norm_group it computes with
// context.batch_norm_kernels, so that a rank alone has the bits of a group of
// one.
absl::StatusOr<std::unique_ptr<BatchNormPlan>> PlanBatchNorm(
    const BatchNormLayerOptions& options, const LayerContext& context,
    const Shape& input);

std::unique_ptr<Layer> CreateBatchNormLayer(BatchNormLayerOptions options);

// Layers one after the other, themselves a layer.

// layers: at least one, each fitting the output of the one before. Saves their
// outputs between forward and backward; temporary space is shared by all.
std::unique_ptr<Layer> CreateSequential(
    std::string name, std::vector<std::unique_ptr<Layer>> layers);

// The residual block of ResNet-18 and ResNet-34.

// The parts, named as d2l's Residual names them. The block sets their `relu`.
struct ResidualOptions {
  std::string name;  // For messages.
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
