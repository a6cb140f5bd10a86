// Layer norm by oneDNN, bound to a layer's parameters.
#include "models/cpu/layer_norm.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/cpu/onednn.h"
#include "models/cpu/plan.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"
#include "models/program/step_memory.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep {
namespace {

// `saved` holds each position's mean and variance.
class LayerNormPlan : public OperationPlan {
 public:
  // Throws dnnl::error.
  LayerNormPlan(const PlanContext& context, const PlanRequest& request)
      : context_(context),
        name_(request.operation->name),
        op_(std::get<LayerNormOp>(request.operation->kind)) {
    using dnnl::memory;
    const Shape& shape = request.x;
    const int64_t rows = shape.n * shape.h * shape.w;
    const memory::desc x = Rows(rows, shape.c, context.type);
    const auto epsilon = static_cast<float>(op_.epsilon);
    const auto forward = onednn::LayerNormForward(context.engine, x, epsilon);
    const auto backward =
        onednn::LayerNormBackward(forward, context.engine, x, epsilon);
    const memory::desc scale = Flat(shape.c, DataType::kFloat32);
    forward_ =
        Primitive(context.engine, dnnl::layer_normalization_forward(forward),
                  {{DNNL_ARG_SRC, x},
                   {DNNL_ARG_MEAN, forward.mean_desc()},
                   {DNNL_ARG_VARIANCE, forward.variance_desc()},
                   {DNNL_ARG_SCALE, scale},
                   {DNNL_ARG_SHIFT, scale},
                   {DNNL_ARG_DST, x},
                   {DNNL_ARG_SCRATCHPAD, forward.scratchpad_desc()}});
    backward_ =
        Primitive(context.engine, dnnl::layer_normalization_backward(backward),
                  {{DNNL_ARG_SRC, x},
                   {DNNL_ARG_MEAN, forward.mean_desc()},
                   {DNNL_ARG_VARIANCE, forward.variance_desc()},
                   {DNNL_ARG_SCALE, scale},
                   // oneDNN 2 requires the shift, but does not use it.
                   {DNNL_ARG_SHIFT, scale},
                   {DNNL_ARG_DIFF_SCALE, scale},
                   {DNNL_ARG_DIFF_SHIFT, scale},
                   {DNNL_ARG_DIFF_DST, x},
                   {DNNL_ARG_DIFF_SRC, x},
                   {DNNL_ARG_SCRATCHPAD, backward.scratchpad_desc()}});
    mean_bytes_ = AlignedBytes(forward.mean_desc());
    saved_bytes = mean_bytes_ + AlignedBytes(forward.variance_desc());
    scratch_bytes = std::max(AlignedBytes(forward.scratchpad_desc()),
                             AlignedBytes(backward.scratchpad_desc()));
    dx_may_share_dy = true;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return CatchOnednn(name_, [&] {
      const Parameters& parameters = *context_.parameters;
      forward_.Run(context_.stream,
                   {{DNNL_ARG_SRC, buffers.x},
                    {DNNL_ARG_MEAN, buffers.saved},
                    {DNNL_ARG_VARIANCE, Offset(buffers.saved, mean_bytes_)},
                    {DNNL_ARG_SCALE, parameters.value(op_.weight).data()},
                    {DNNL_ARG_SHIFT, parameters.value(op_.bias).data()},
                    {DNNL_ARG_DST, buffers.y},
                    {DNNL_ARG_SCRATCHPAD, buffers.scratch}});
    });
  }

  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady ready) override {
    Parameters& parameters = *context_.parameters;
    LOCKSTEP_RETURN_IF_ERROR(CatchOnednn(name_, [&] {
      backward_.Run(
          context_.stream,
          {{DNNL_ARG_SRC, buffers.x},
           {DNNL_ARG_MEAN, buffers.saved},
           {DNNL_ARG_VARIANCE, Offset(buffers.saved, mean_bytes_)},
           {DNNL_ARG_SCALE, parameters.value(op_.weight).data()},
           {DNNL_ARG_SHIFT, parameters.value(op_.bias).data()},
           {DNNL_ARG_DIFF_SCALE, parameters.gradient(op_.weight).data()},
           {DNNL_ARG_DIFF_SHIFT, parameters.gradient(op_.bias).data()},
           {DNNL_ARG_DIFF_DST, buffers.dy},
           {DNNL_ARG_DIFF_SRC, buffers.dx == nullptr ? buffers.dy : buffers.dx},
           {DNNL_ARG_SCRATCHPAD, buffers.scratch}});
    }));
    ready(op_.bias);
    ready(op_.weight);
    return absl::OkStatus();
  }

 private:
  PlanContext context_;
  const std::string name_;
  const LayerNormOp op_;
  int64_t mean_bytes_ = 0;
  Primitive forward_, backward_;
};

}  // namespace

PlanOr PlanLayerNorm(const PlanContext& context, const PlanRequest& request) {
  const auto& op = std::get<LayerNormOp>(request.operation->kind);
  return MakePlan(context, request, {op.bias, op.weight}, [&] {
    return std::make_unique<LayerNormPlan>(context, request);
  });
}

}  // namespace lockstep
