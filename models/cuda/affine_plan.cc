#include "models/cuda/affine_plan.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "models/cuda/convolution.h"
#include "models/cuda/plan.h"
#include "models/cuda/pointwise.h"
#include "models/cuda/product.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"

namespace lockstep {
namespace {

// y = relu(W * x + bias), where W * x is a convolution or a product. The
// product's work is in derived classes.
class AffinePlan : public OperationPlan {
 public:
  struct Tensors {
    int weight = kNoTensor;
    int bias = kNoTensor;
    bool relu = false;
  };

  // rows, channels: y's.
  AffinePlan(const CudaPlanContext& context, const Tensors& tensors,
             int64_t rows, int64_t channels)
      : context_(context), tensors_(tensors), rows_(rows), channels_(channels) {
    backward_reads_y = tensors.relu;
    scratch_bytes = BiasReluScratchBytes(rows, channels);
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
    LOCKSTEP_RETURN_IF_ERROR(
        WeightGradient(buffers, parameters.gradient(tensors_.weight).data()));
    ready(tensors_.weight);
    return buffers.dx == nullptr ? absl::OkStatus() : InputGradient(buffers);
  }

 protected:
  // Enqueue dweight = the gradient of the weights, and buffers.dx.
  virtual absl::Status WeightGradient(const BackwardBuffers& buffers,
                                      float* dweight) = 0;
  virtual absl::Status InputGradient(const BackwardBuffers& buffers) = 0;

  // Makes room in the scratch memory for work that needs `bytes`.
  void NeedScratch(int64_t bytes) {
    scratch_bytes = std::max(scratch_bytes, bytes);
  }
  const CudaPlanContext& context() const { return context_; }
  float* Weight() const {
    return context_.parameters->value(tensors_.weight).data();
  }
  float* Bias() const {
    return tensors_.bias == kNoTensor
               ? nullptr
               : context_.parameters->value(tensors_.bias).data();
  }

 private:
  const CudaPlanContext context_;
  const Tensors tensors_;
  const int64_t rows_, channels_;
};

class ConvolutionAffinePlan : public AffinePlan {
 public:
  // graph: the convolution; its pass, bias and ReLU are set here.
  static PlanOr Create(const CudaPlanContext& context,
                       const PlanRequest& request, const Tensors& tensors,
                       ConvolutionGraph graph) {
    auto plan =
        std::make_unique<ConvolutionAffinePlan>(context, tensors, graph);
    graph.bias = tensors.bias != kNoTensor;
    graph.relu = tensors.relu;
    LOCKSTEP_RETURN_IF_ERROR(plan->Add(graph, plan->forward_));
    plan->algorithm_name = plan->forward_->engine();
    graph.bias = graph.relu = false;
    graph.pass = ConvolutionPass::kWeightGradient;
    LOCKSTEP_RETURN_IF_ERROR(plan->Add(graph, plan->weight_gradient_));
    if (request.input_gradient) {
      graph.pass = ConvolutionPass::kInputGradient;
      LOCKSTEP_RETURN_IF_ERROR(plan->Add(graph, plan->input_gradient_));
    }
    return plan;
  }

  ConvolutionAffinePlan(const CudaPlanContext& context, const Tensors& tensors,
                        const ConvolutionGraph& graph)
      : AffinePlan(context, tensors, graph.n * graph.out_h() * graph.out_w(),
                   graph.out_channels) {}

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return forward_->Execute(context().cudnn,
                             {.x = const_cast<void*>(buffers.x),
                              .w = Weight(),
                              .y = buffers.y,
                              .bias = Bias()},
                             buffers.scratch);
  }

 protected:
  absl::Status WeightGradient(const BackwardBuffers& buffers,
                              float* dweight) override {
    return weight_gradient_->Execute(
        context().cudnn,
        {.x = const_cast<void*>(buffers.x), .w = dweight, .y = buffers.dy},
        buffers.scratch);
  }
  absl::Status InputGradient(const BackwardBuffers& buffers) override {
    return input_gradient_->Execute(
        context().cudnn, {.x = buffers.dx, .w = Weight(), .y = buffers.dy},
        buffers.scratch);
  }

 private:
  absl::Status Add(const ConvolutionGraph& graph,
                   std::optional<ConvolutionPlan>& plan) {
    LOCKSTEP_ASSIGN_OR_RETURN(plan,
                              ConvolutionPlan::Create(*context().card, graph));
    NeedScratch(plan->workspace_bytes());
    return absl::OkStatus();
  }

  std::optional<ConvolutionPlan> forward_, weight_gradient_, input_gradient_;
};

// With x [rows, in] and W [out, in]: y = x W', dW = dy' x, dx = dy W.
class LinearPlan : public AffinePlan {
 public:
  struct Size {
    int64_t rows, in, out;
  };

  static PlanOr Create(const CudaPlanContext& context,
                       const PlanRequest& request, const Tensors& tensors,
                       const Size& size) {
    auto plan = std::make_unique<LinearPlan>(context, tensors, size);
    const std::string& name = request.operation->name;
    const bool tf32 = context.precision == ConvolutionPrecision::kTf32;
    LOCKSTEP_RETURN_IF_ERROR(plan->Add({.name = name,
                                        .rows = size.rows,
                                        .columns = size.out,
                                        .inner = size.in,
                                        .transpose_b = true,
                                        .bias = plan->Bias(),
                                        .relu = tensors.relu,
                                        .tf32 = tf32},
                                       plan->forward_));
    LOCKSTEP_RETURN_IF_ERROR(plan->Add({.name = name,
                                        .rows = size.out,
                                        .columns = size.in,
                                        .inner = size.rows,
                                        .transpose_a = true,
                                        .tf32 = tf32},
                                       plan->weight_gradient_));
    if (request.input_gradient) {
      LOCKSTEP_RETURN_IF_ERROR(plan->Add({.name = name,
                                          .rows = size.rows,
                                          .columns = size.in,
                                          .inner = size.out,
                                          .tf32 = tf32},
                                         plan->input_gradient_));
    }
    return plan;
  }

  LinearPlan(const CudaPlanContext& context, const Tensors& tensors,
             const Size& size)
      : AffinePlan(context, tensors, size.rows, size.out) {}

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return forward_->Execute(buffers.x, Weight(), buffers.y, buffers.scratch,
                             context().stream);
  }

 protected:
  absl::Status WeightGradient(const BackwardBuffers& buffers,
                              float* dweight) override {
    return weight_gradient_->Execute(buffers.dy, buffers.x, dweight,
                                     buffers.scratch, context().stream);
  }
  absl::Status InputGradient(const BackwardBuffers& buffers) override {
    return input_gradient_->Execute(buffers.dy, Weight(), buffers.dx,
                                    buffers.scratch, context().stream);
  }

 private:
  absl::Status Add(ProductShape shape, std::optional<Product>& product) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        product, Product::Create(context().cublas, std::move(shape)));
    NeedScratch(product->workspace_bytes());
    return absl::OkStatus();
  }

  std::optional<Product> forward_, weight_gradient_, input_gradient_;
};

}  // namespace

PlanOr PlanConvolution(const CudaPlanContext& context,
                       const PlanRequest& request) {
  const auto& op = std::get<ConvolutionOp>(request.operation->kind);
  return ConvolutionAffinePlan::Create(
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

PlanOr PlanLinear(const CudaPlanContext& context, const PlanRequest& request) {
  const auto& op = std::get<LinearOp>(request.operation->kind);
  const int64_t pixels = request.x.h * request.x.w;
  return LinearPlan::Create(
      context, request, {.weight = op.weight, .bias = op.bias, .relu = op.relu},
      {.rows = op.per_position ? request.x.n * pixels : request.x.n,
       .in = op.per_position ? request.x.c : request.x.c * pixels,
       .out = request.output.c});
}

}  // namespace lockstep
