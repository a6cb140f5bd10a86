#include "models/cuda/plan.h"

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/cuda/affine_plan.h"
#include "models/cuda/attention_plan.h"
#include "models/cuda/dropout.h"
#include "models/cuda/pool.h"
#include "models/cuda/transformer_plans.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/batch_norm_plan.h"
#include "models/program/operation_plan.h"
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

// `saved` holds the winners of a maximum.
class PoolPlan : public OperationPlan {
 public:
  PoolPlan(const PoolShape& shape, cudaStream_t stream)
      : shape_(shape), stream_(stream) {
    backward_reads_x = false;
    if (shape.maximum) saved_bytes = shape.y.size();
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return PoolForward(shape_, buffers.x, buffers.y,
                       static_cast<uint8_t*>(buffers.saved), stream_);
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    if (buffers.dx == nullptr) return absl::OkStatus();
    return PoolBackward(shape_, buffers.dy,
                        static_cast<const uint8_t*>(buffers.saved), buffers.dx,
                        stream_);
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
                                              .padding = op.padding,
                                              .type = context.type()},
                                    context.stream);
}

PlanOr PlanGlobalAverage(const CudaPlanContext& context,
                         const PlanRequest& request) {
  return std::make_unique<PoolPlan>(PoolShape{.x = request.x,
                                              .y = request.output,
                                              .kernel_h = request.x.h,
                                              .kernel_w = request.x.w,
                                              .type = context.type()},
                                    context.stream);
}

// Returns the indices of the operation's parameters, biases first.
std::vector<int> ParametersOf(const Network::Operation& operation) {
  return std::visit(
      []<typename Op>(const Op& op) -> std::vector<int> {
        if constexpr (requires { op.class_token; }) {
          return {op.position, op.class_token};
        } else if constexpr (requires { op.weight; }) {
          if (op.bias == kNoTensor) return {op.weight};
          return {op.bias, op.weight};
        } else {
          return {};
        }
      },
      operation.kind);
}

PlanOr PlanBatchNormOn(const CudaPlanContext& context,
                       const PlanRequest& request) {
  return PlanBatchNorm({.type = context.type(),
                        .layout = Layout::kNhwc,
                        .parameters = context.parameters,
                        .buffers = context.buffers,
                        .kernels = context.batch_norm_kernels,
                        .group = context.batch_norm_group},
                       request);
}

}  // namespace

DeviceMaskKey DeviceMaskKeyOf(const CudaPlanContext& context,
                              const Batch& batch, int layer, double rate) {
  return {MaskKeyOf(batch, layer, rate),
          context.numbers == nullptr ? nullptr : *context.numbers};
}

PlanOr CreateCudaPlan(const CudaPlanContext& context,
                      const PlanRequest& request) {
  struct Family {
    const CudaPlanContext& context;
    const PlanRequest& request;
    PlanOr operator()(const ConvolutionOp&) {
      return PlanConvolution(context, request);
    }
    PlanOr operator()(const LinearOp&) { return PlanLinear(context, request); }
    PlanOr operator()(const BatchNormOp&) {
      return PlanBatchNormOn(context, request);
    }
    PlanOr operator()(const PoolOp& op) {
      return PlanPool(context, request, op);
    }
    PlanOr operator()(const GlobalAveragePoolOp&) {
      return PlanGlobalAverage(context, request);
    }
    PlanOr operator()(const LayerNormOp&) {
      return PlanLayerNorm(context, request);
    }
    PlanOr operator()(const GeluOp&) { return PlanGelu(context, request); }
    PlanOr operator()(const AttentionOp&) {
      return PlanAttention(context, request);
    }
    PlanOr operator()(const EmbedOp&) { return PlanEmbed(context, request); }
    PlanOr operator()(const FirstPositionOp&) {
      return PlanFirstPosition(context, request);
    }
    PlanOr operator()(const DropoutOp&) {
      return PlanDropout(context, request);
    }
    PlanOr operator()(const AddOp&) { return PlanAdd(context, request); }
  };
  const Network::Operation& operation = *request.operation;
  if (request.x.n == 0 &&
      !std::holds_alternative<BatchNormOp>(operation.kind)) {
    return std::make_unique<EmptyPlan>(context, ParametersOf(operation));
  }
  return std::visit(Family{context, request}, operation.kind);
}

}  // namespace lockstep
