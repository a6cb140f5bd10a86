// Pooling by oneDNN.
#include "models/cpu/pool.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "base/data_types.h"
#include "models/cpu/onednn.h"
#include "models/cpu/plan.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"
#include "models/program/step_memory.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace lockstep {
namespace {

// `saved` holds the index of the highest element of each window.
class PoolPlan : public OperationPlan {
 public:
  // Throws dnnl::error.
  PoolPlan(const PlanContext& context, const PlanRequest& request, bool maximum,
           const onednn::Window& window)
      : context_(context), name_(request.operation->name), maximum_(maximum) {
    const auto x = Activations(request.x, context.type, context.layout);
    const auto y = Activations(request.output, context.type, context.layout);
    const auto forward =
        onednn::PoolForward(context.engine, maximum, x, y, window);
    const auto backward =
        onednn::PoolBackward(forward, context.engine, maximum, x, y, window);
    forward_ = Primitive(context.engine, dnnl::pooling_forward(forward),
                         {{DNNL_ARG_SRC, x},
                          {DNNL_ARG_DST, y},
                          {DNNL_ARG_WORKSPACE, forward.workspace_desc()},
                          {DNNL_ARG_SCRATCHPAD, forward.scratchpad_desc()}});
    backward_ = Primitive(context.engine, dnnl::pooling_backward(backward),
                          {{DNNL_ARG_DIFF_SRC, x},
                           {DNNL_ARG_DIFF_DST, y},
                           {DNNL_ARG_WORKSPACE, forward.workspace_desc()},
                           {DNNL_ARG_SCRATCHPAD, backward.scratchpad_desc()}});
    backward_reads_x = false;
    saved_bytes = AlignedBytes(forward.workspace_desc());
    scratch_bytes = std::max(AlignedBytes(forward.scratchpad_desc()),
                             AlignedBytes(backward.scratchpad_desc()));
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return CatchOnednn(name_, [&] {
      forward_.Run(context_.stream, {{DNNL_ARG_SRC, buffers.x},
                                     {DNNL_ARG_DST, buffers.y},
                                     {DNNL_ARG_WORKSPACE, Workspace(buffers)},
                                     {DNNL_ARG_SCRATCHPAD, buffers.scratch}});
    });
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    if (buffers.dx == nullptr) return absl::OkStatus();
    return CatchOnednn(name_, [&] {
      backward_.Run(context_.stream, {{DNNL_ARG_DIFF_SRC, buffers.dx},
                                      {DNNL_ARG_DIFF_DST, buffers.dy},
                                      {DNNL_ARG_WORKSPACE, Workspace(buffers)},
                                      {DNNL_ARG_SCRATCHPAD, buffers.scratch}});
    });
  }

 private:
  template <typename Buffers>
  const void* Workspace(const Buffers& buffers) const {
    return maximum_ ? buffers.saved : nullptr;
  }

  PlanContext context_;
  const std::string name_;
  const bool maximum_;
  Primitive forward_, backward_;
};

// Returns the number of zeros that windows need after the last row or column.
// The number is smaller than op.padding, or negative, if the windows leave some
// rows over.
int64_t PaddingAfter(int64_t size, int64_t output, const PoolOp& op) {
  return (output - 1) * op.stride + op.kernel - size - op.padding;
}

}  // namespace

PlanOr PlanPool(const PlanContext& context, const PlanRequest& request) {
  const auto* const op = std::get_if<PoolOp>(&request.operation->kind);
  const Shape& x = request.x;
  const Shape& y = request.output;
  onednn::Window window = {.kernel = {x.h, x.w},
                           .stride = {x.h, x.w},
                           .padding_before = {0, 0},
                           .padding_after = {0, 0}};
  if (op != nullptr) {
    window = {.kernel = {op->kernel, op->kernel},
              .stride = {op->stride, op->stride},
              .padding_before = {op->padding, op->padding},
              .padding_after = {PaddingAfter(x.h, y.h, *op),
                                PaddingAfter(x.w, y.w, *op)}};
  }
  return MakePlan(context, request, {}, [&] {
    return std::make_unique<PoolPlan>(context, request,
                                      op != nullptr && op->maximum, window);
  });
}

}  // namespace lockstep
