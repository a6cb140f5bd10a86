// Batch norm's plan, with the addition that a residual block has in it.
#ifndef LOCKSTEP_MODELS_CPU_BATCH_NORM_PLAN_H_
#define LOCKSTEP_MODELS_CPU_BATCH_NORM_PLAN_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/cpu/layer.h"
#include "models/cpu/layers.h"
#include "models/cpu/onednn.h"
#include "models/model.h"
#include "syncbn/batch_norm.h"

namespace lockstep {

// A batch norm layer's plan. `saved` holds the batch's statistics. In training
// on a group every rank runs Forward and Backward at the same time; messages
// wait for each other, planning sends none. Errors, beside LayerPlan's:
// kInvalidArgument for a batch of one value per channel, over all ranks, in
// training.
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

}  // namespace lockstep

#endif  // LOCKSTEP_MODELS_CPU_BATCH_NORM_PLAN_H_
