#include "models/cuda/plan.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/cuda/convolution.h"
#include "models/cuda/pointwise.h"
#include "models/cuda/pool.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/batch_norm_plan.h"
#include "models/program/operation_plan.h"
#include "models/program/step_memory.h"
#include "syncbn/batch_norm.h"

namespace lockstep {
namespace {

absl::Status Fill0(std::span<float> memory, cudaStream_t stream) {
  return CudaStatus(
      cudaMemsetAsync(memory.data(), 0, memory.size_bytes(), stream),
      "cudaMemsetAsync");
}

// The plan for a batch without samples.
class EmptyPlan : public OperationPlan {
 public:
  EmptyPlan(const CudaPlanContext& context, std::vector<int> indices)
      : context_(context), indices_(std::move(indices)) {
    backward_reads_x = false;
  }

  absl::Status Forward(const ForwardBuffers&) override {
    return absl::OkStatus();
  }
  absl::Status Backward(const BackwardBuffers&,
                        Model::GradientReady ready) override {
    for (const int index : indices_) {
      LOCKSTEP_RETURN_IF_ERROR(
          Fill0(context_.parameters->gradient(index), context_.stream));
      ready(index);
    }
    return absl::OkStatus();
  }

 private:
  const CudaPlanContext context_;
  const std::vector<int> indices_;
};

// A convolution, or a linear layer, which is a convolution of 1x1 over images
// of one pixel whose channels are a whole sample.
class AffinePlan : public OperationPlan {
 public:
  struct Tensors {
    int weight = kNoTensor;
    int bias = kNoTensor;
    bool relu = false;
  };

  // graph: the convolution; its pass, bias and ReLU are set here.
  static PlanOr Create(const CudaPlanContext& context,
                       const PlanRequest& request, const Tensors& tensors,
                       ConvolutionGraph graph) {
    auto plan = std::make_unique<AffinePlan>(context, tensors, graph);
    graph.bias = tensors.bias != kNoTensor;
    graph.relu = tensors.relu;
    LOCKSTEP_ASSIGN_OR_RETURN(plan->forward_,
                              ConvolutionPlan::Create(*context.card, graph));
    graph.bias = graph.relu = false;
    graph.pass = ConvolutionPass::kWeightGradient;
    LOCKSTEP_ASSIGN_OR_RETURN(plan->weight_gradient_,
                              ConvolutionPlan::Create(*context.card, graph));
    if (request.input_gradient) {
      graph.pass = ConvolutionPass::kInputGradient;
      LOCKSTEP_ASSIGN_OR_RETURN(plan->input_gradient_,
                                ConvolutionPlan::Create(*context.card, graph));
    }
    plan->SetSizes();
    return plan;
  }

  AffinePlan(const CudaPlanContext& context, const Tensors& tensors,
             const ConvolutionGraph& graph)
      : context_(context),
        tensors_(tensors),
        rows_(graph.n * graph.out_h() * graph.out_w()),
        channels_(graph.out_channels) {
    backward_reads_y = tensors.relu;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return forward_->Execute(context_.cudnn,
                             {.x = const_cast<void*>(buffers.x),
                              .w = Weight().data(),
                              .y = buffers.y,
                              .bias = Bias()},
                             buffers.scratch);
  }

  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady ready) override {
    Parameters& parameters = *context_.parameters;
    float* const dbias = tensors_.bias == kNoTensor
                             ? nullptr
                             : parameters.gradient(tensors_.bias).data();
    LOCKSTEP_RETURN_IF_ERROR(BiasReluBackward(
        rows_, channels_,
        tensors_.relu ? static_cast<const float*>(buffers.y) : nullptr,
        static_cast<float*>(buffers.dy), dbias,
        static_cast<float*>(buffers.scratch), context_.stream));
    if (tensors_.bias != kNoTensor) ready(tensors_.bias);
    LOCKSTEP_RETURN_IF_ERROR(weight_gradient_->Execute(
        context_.cudnn,
        {.x = const_cast<void*>(buffers.x),
         .w = parameters.gradient(tensors_.weight).data(),
         .y = buffers.dy},
        buffers.scratch));
    ready(tensors_.weight);
    if (buffers.dx == nullptr) return absl::OkStatus();
    return input_gradient_->Execute(
        context_.cudnn,
        {.x = buffers.dx, .w = Weight().data(), .y = buffers.dy},
        buffers.scratch);
  }

 private:
  void SetSizes() {
    scratch_bytes = BiasReluScratchBytes(rows_, channels_);
    algorithm_name = forward_->engine();
    for (const auto* plan : {&forward_, &weight_gradient_, &input_gradient_}) {
      if (!plan->has_value()) continue;
      scratch_bytes = std::max(scratch_bytes, (*plan)->workspace_bytes());
    }
  }

  std::span<float> Weight() const {
    return context_.parameters->value(tensors_.weight);
  }
  float* Bias() const {
    return tensors_.bias == kNoTensor
               ? nullptr
               : context_.parameters->value(tensors_.bias).data();
  }

  const CudaPlanContext context_;
  const Tensors tensors_;
  const int64_t rows_, channels_;  // Of y.
  std::optional<ConvolutionPlan> forward_, weight_gradient_, input_gradient_;
};

PlanOr PlanConvolution(const CudaPlanContext& context,
                       const PlanRequest& request, const ConvolutionOp& op) {
  if (request.x.n == 0) {
    std::vector<int> indices = {op.weight};
    if (op.bias != kNoTensor) indices.insert(indices.begin(), op.bias);
    return std::make_unique<EmptyPlan>(context, std::move(indices));
  }
  return AffinePlan::Create(
      context, request, {.weight = op.weight, .bias = op.bias, .relu = op.relu},
      {.name = request.operation->name,
       .precision = context.precision,
       .n = request.x.n,
       .c = request.x.c,
       .h = request.x.h,
       .w = request.x.w,
       .out_channels = request.output.c,
       .kernel = op.kernel,
       .stride = op.stride,
       .padding = op.padding});
}

PlanOr PlanLinear(const CudaPlanContext& context, const PlanRequest& request,
                  const LinearOp& op) {
  if (request.x.n == 0) {
    return std::make_unique<EmptyPlan>(context,
                                       std::vector<int>{op.bias, op.weight});
  }
  const int64_t pixels = request.x.h * request.x.w;
  return AffinePlan::Create(
      context, request, {.weight = op.weight, .bias = op.bias, .relu = op.relu},
      {.name = request.operation->name,
       .precision = context.precision,
       .n = op.per_position ? request.x.n * pixels : request.x.n,
       .c = op.per_position ? request.x.c : request.x.c * pixels,
       .out_channels = request.output.c});
}

// `saved` holds the winners of a maximum.
class PoolPlan : public OperationPlan {
 public:
  PoolPlan(const PoolShape& shape, cudaStream_t stream)
      : shape_(shape), stream_(stream) {
    backward_reads_x = false;
    if (shape.maximum) saved_bytes = shape.y.size();
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return PoolForward(shape_, static_cast<const float*>(buffers.x),
                       static_cast<float*>(buffers.y),
                       static_cast<uint8_t*>(buffers.saved), stream_);
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    if (buffers.dx == nullptr) return absl::OkStatus();
    return PoolBackward(shape_, static_cast<const float*>(buffers.dy),
                        static_cast<const uint8_t*>(buffers.saved),
                        static_cast<float*>(buffers.dx), stream_);
  }

 private:
  const PoolShape shape_;
  const cudaStream_t stream_;
};

PlanOr PlanPool(const CudaPlanContext& context, const PlanRequest& request,
                const PoolOp& op) {
  return std::make_unique<PoolPlan>(PoolShape{.x = request.x,
                                              .y = request.output,
                                              .maximum = op.maximum,
                                              .kernel_h = op.kernel,
                                              .kernel_w = op.kernel,
                                              .stride_h = op.stride,
                                              .stride_w = op.stride,
                                              .padding = op.padding},
                                    context.stream);
}

PlanOr PlanGlobalAverage(const CudaPlanContext& context,
                         const PlanRequest& request) {
  return std::make_unique<PoolPlan>(PoolShape{.x = request.x,
                                              .y = request.output,
                                              .kernel_h = request.x.h,
                                              .kernel_w = request.x.w},
                                    context.stream);
}

struct Unsupported {
  const PlanRequest& request;
  PlanOr operator()(absl::string_view kind) const {
    return absl::UnimplementedError(absl::StrCat(
        request.operation->name, ": ", kind,
        " is not computed on a GPU yet; --device=cpu computes it"));
  }
};

}  // namespace

PlanOr CreateCudaPlan(const CudaPlanContext& context,
                      const PlanRequest& request) {
  struct Family {
    const CudaPlanContext& context;
    const PlanRequest& request;
    const Unsupported unsupported{request};
    PlanOr operator()(const ConvolutionOp& op) {
      return PlanConvolution(context, request, op);
    }
    PlanOr operator()(const LinearOp& op) {
      return PlanLinear(context, request, op);
    }
    PlanOr operator()(const BatchNormOp&) {
      return PlanBatchNorm({.type = DataType::kFloat32,
                            .layout = Layout::kNhwc,
                            .parameters = context.parameters,
                            .buffers = context.buffers,
                            .kernels = context.batch_norm_kernels,
                            .group = context.batch_norm_group},
                           request);
    }
    PlanOr operator()(const PoolOp& op) {
      return PlanPool(context, request, op);
    }
    PlanOr operator()(const GlobalAveragePoolOp&) {
      return PlanGlobalAverage(context, request);
    }
    PlanOr operator()(const LayerNormOp&) { return unsupported("layer norm"); }
    PlanOr operator()(const GeluOp&) { return unsupported("GELU"); }
    PlanOr operator()(const AttentionOp&) { return unsupported("attention"); }
    PlanOr operator()(const EmbedOp&) { return unsupported("an embedding"); }
    PlanOr operator()(const FirstPositionOp&) {
      return unsupported("the first position");
    }
    PlanOr operator()(const DropoutOp&) { return unsupported("dropout"); }
    PlanOr operator()(const AddOp&) { return unsupported("an addition"); }
  };
  return std::visit(Family{context, request}, request.operation->kind);
}

}  // namespace lockstep
