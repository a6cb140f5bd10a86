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
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/cuda/convolution.h"
#include "models/cuda/plan.h"
#include "models/cuda/pointwise.h"
#include "models/cuda/product.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"
#include "models/program/step_memory.h"

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
        context_.type(), rows_, channels_, tensors_.relu ? buffers.y : nullptr,
        buffers.dy, dbias, static_cast<float*>(buffers.scratch),
        context_.stream));
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
  const void* Weight() const { return context_.Factor(tensors_.weight); }
  const void* Bias() const {
    return tensors_.bias == kNoTensor ? nullptr
                                      : context_.Factor(tensors_.bias);
  }

 private:
  const CudaPlanContext context_;
  const Tensors tensors_;
  const int64_t rows_, channels_;
};

// cuDNN writes the gradient of weights in the type of activations. If that has
// 16 bits, the gradient begins the scratch memory and is then widened.
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
                   graph.out_channels),
        weights_(graph.out_channels * graph.c * graph.kernel * graph.kernel),
        narrow_bytes_(context.is_float32()
                          ? 0
                          : AlignedBytes(weights_ * SizeOf(context.type()))) {}

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return forward_->Execute(context().cudnn,
                             {.x = const_cast<void*>(buffers.x),
                              .w = const_cast<void*>(Weight()),
                              .y = buffers.y,
                              .bias = const_cast<void*>(Bias())},
                             buffers.scratch);
  }

 protected:
  absl::Status WeightGradient(const BackwardBuffers& buffers,
                              float* dweight) override {
    void* const written = narrow_bytes_ == 0 ? dweight : buffers.scratch;
    LOCKSTEP_RETURN_IF_ERROR(weight_gradient_->Execute(
        context().cudnn,
        {.x = const_cast<void*>(buffers.x), .w = written, .y = buffers.dy},
        Offset(buffers.scratch, narrow_bytes_)));
    if (narrow_bytes_ == 0) return absl::OkStatus();
    return WidenOnGpu(context().type(), weights_, written, dweight,
                      context().stream);
  }
  absl::Status InputGradient(const BackwardBuffers& buffers) override {
    return input_gradient_->Execute(
        context().cudnn,
        {.x = buffers.dx, .w = const_cast<void*>(Weight()), .y = buffers.dy},
        buffers.scratch);
  }

 private:
  absl::Status Add(const ConvolutionGraph& graph,
                   std::optional<ConvolutionPlan>& plan) {
    LOCKSTEP_ASSIGN_OR_RETURN(plan,
                              ConvolutionPlan::Create(*context().card, graph));
    const bool of_weights = graph.pass == ConvolutionPass::kWeightGradient;
    NeedScratch((of_weights ? narrow_bytes_ : 0) + plan->workspace_bytes());
    return absl::OkStatus();
  }

  const int64_t weights_;       // The number of weights.
  const int64_t narrow_bytes_;  // The bytes of their 16-bit gradient, or 0.
  std::optional<ConvolutionPlan> forward_, weight_gradient_, input_gradient_;
};

// With x [rows, in] and W [out, in]: y = x W', dW = dy' x, dx = dy W. cuBLASLt
// writes dW in float32.
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
    const DataType type = context.type();
    LOCKSTEP_RETURN_IF_ERROR(plan->Add({.name = name,
                                        .rows = size.rows,
                                        .columns = size.out,
                                        .inner = size.in,
                                        .transpose_b = true,
                                        .bias = plan->Bias(),
                                        .relu = tensors.relu,
                                        .type = type,
                                        .tf32 = tf32},
                                       plan->forward_));
    LOCKSTEP_RETURN_IF_ERROR(plan->Add({.name = name,
                                        .rows = size.out,
                                        .columns = size.in,
                                        .inner = size.rows,
                                        .transpose_a = true,
                                        .type = type,
                                        .written = DataType::kFloat32,
                                        .tf32 = tf32},
                                       plan->weight_gradient_));
    if (request.input_gradient) {
      LOCKSTEP_RETURN_IF_ERROR(plan->Add({.name = name,
                                          .rows = size.rows,
                                          .columns = size.in,
                                          .inner = size.out,
                                          .type = type,
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
