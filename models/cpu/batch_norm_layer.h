// Batch normalisation as a layer, perhaps with a residual and ReLU.
#ifndef LOCKSTEP_MODELS_CPU_BATCH_NORM_LAYER_H_
#define LOCKSTEP_MODELS_CPU_BATCH_NORM_LAYER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/cpu/layer.h"
#include "models/cpu/shape.h"
#include "models/model.h"
#include "syncbn/batch_norm.h"

namespace lockstep {

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

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_BATCH_NORM_LAYER_H_
