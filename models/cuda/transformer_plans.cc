#include "models/cuda/transformer_plans.h"

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <variant>

#include "absl/status/status.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/cuda/dropout.h"
#include "models/cuda/layer_norm.h"
#include "models/cuda/plan.h"
#include "models/cuda/pointwise.h"
#include "models/cuda/sequence.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/program/operation_plan.h"

namespace lockstep {
namespace {

// `saved` holds the statistics of the rows.
class LayerNormPlan : public OperationPlan {
 public:
  LayerNormPlan(const CudaPlanContext& context, const PlanRequest& request)
      : context_(context),
        op_(std::get<LayerNormOp>(request.operation->kind)),
        shape_{.rows = request.x.n * request.x.h * request.x.w,
               .channels = request.x.c,
               .epsilon = static_cast<float>(op_.epsilon),
               .type = context.type()} {
    saved_bytes = shape_.rows * static_cast<int64_t>(sizeof(RowStatistics));
    scratch_bytes = LayerNormScratchBytes(shape_);
    dx_may_share_dy = true;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    const Parameters& parameters = *context_.parameters;
    return LayerNormForward(
        shape_, buffers.x, parameters.value(op_.weight).data(),
        parameters.value(op_.bias).data(), buffers.y,
        static_cast<RowStatistics*>(buffers.saved), context_.stream);
  }

  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady ready) override {
    Parameters& parameters = *context_.parameters;
    const auto* const statistics =
        static_cast<const RowStatistics*>(buffers.saved);
    LOCKSTEP_RETURN_IF_ERROR(LayerNormBackwardParameters(
        shape_, buffers.x, statistics, buffers.dy,
        parameters.gradient(op_.weight).data(),
        parameters.gradient(op_.bias).data(),
        static_cast<float*>(buffers.scratch), context_.stream));
    ready(op_.bias);
    ready(op_.weight);
    if (buffers.dx == nullptr) return absl::OkStatus();
    return LayerNormBackwardInput(
        shape_, buffers.x, parameters.value(op_.weight).data(), statistics,
        buffers.dy, buffers.dx, context_.stream);
  }

 private:
  const CudaPlanContext context_;
  const LayerNormOp op_;
  const LayerNormShape shape_;
};

class GeluPlan : public OperationPlan {
 public:
  GeluPlan(const CudaPlanContext& context, const PlanRequest& request)
      : stream_(context.stream),
        type_(context.type()),
        count_(request.x.size()) {
    dx_may_share_dy = true;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return GeluForward(type_, count_, buffers.x, buffers.y, stream_);
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    if (buffers.dx == nullptr) return absl::OkStatus();
    return GeluBackward(type_, count_, buffers.x, buffers.dy, buffers.dx,
                        stream_);
  }

 private:
  const cudaStream_t stream_;
  const DataType type_;
  const int64_t count_;
};

class EmbedPlan : public OperationPlan {
 public:
  EmbedPlan(const CudaPlanContext& context, const PlanRequest& request)
      : context_(context),
        op_(std::get<EmbedOp>(request.operation->kind)),
        shape_{.n = request.x.n,
               .length = request.output.h,
               .width = request.output.c,
               .type = context.type()} {
    backward_reads_x = false;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    const Parameters& parameters = *context_.parameters;
    return EmbedForward(
        shape_, buffers.x, parameters.value(op_.class_token).data(),
        parameters.value(op_.position).data(), buffers.y, context_.stream);
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady ready) override {
    Parameters& parameters = *context_.parameters;
    LOCKSTEP_RETURN_IF_ERROR(EmbedBackward(
        shape_, buffers.dy, buffers.dx,
        parameters.gradient(op_.class_token).data(),
        parameters.gradient(op_.position).data(), context_.stream));
    ready(op_.position);
    ready(op_.class_token);
    return absl::OkStatus();
  }

 private:
  const CudaPlanContext context_;
  const EmbedOp op_;
  const SequenceShape shape_;
};

class FirstPositionPlan : public OperationPlan {
 public:
  FirstPositionPlan(const CudaPlanContext& context, const PlanRequest& request)
      : stream_(context.stream),
        shape_{.n = request.x.n,
               .length = request.x.h * request.x.w,
               .width = request.x.c,
               .type = context.type()} {
    backward_reads_x = false;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    return FirstPositionForward(shape_, buffers.x, buffers.y, stream_);
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    if (buffers.dx == nullptr) return absl::OkStatus();
    return FirstPositionBackward(shape_, buffers.dy, buffers.dx, stream_);
  }

 private:
  const cudaStream_t stream_;
  const SequenceShape shape_;
};

class DropoutPlan : public OperationPlan {
 public:
  DropoutPlan(const CudaPlanContext& context, const PlanRequest& request)
      : context_(context),
        op_(std::get<DropoutOp>(request.operation->kind)),
        n_(request.x.n),
        size_(request.x.c * request.x.h * request.x.w) {
    backward_reads_x = false;
    dx_may_share_dy = true;
  }

  absl::Status Forward(const ForwardBuffers& buffers) override {
    if (buffers.training) {
      return Drop(*buffers.batch, buffers.x, buffers.y);
    }
    return CudaStatus(
        cudaMemcpyAsync(
            buffers.y, buffers.x,
            static_cast<size_t>(n_ * size_ * SizeOf(context_.type())),
            cudaMemcpyDeviceToDevice, context_.stream),
        "cudaMemcpyAsync");
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    if (buffers.dx == nullptr) return absl::OkStatus();
    return Drop(*buffers.batch, buffers.dy, buffers.dx);
  }

 private:
  absl::Status Drop(const Batch& batch, const void* from, void* to) const {
    return DropOutOnGpu(DeviceMaskKeyOf(context_, batch, op_.layer, op_.rate),
                        context_.type(), n_, size_, from, to, context_.stream);
  }

  const CudaPlanContext context_;
  const DropoutOp op_;
  const int64_t n_, size_;
};

class AddPlan : public OperationPlan {
 public:
  AddPlan(const CudaPlanContext& context, const PlanRequest& request)
      : context_(context),
        op_(std::get<AddOp>(request.operation->kind)),
        n_(request.x.n),
        size_(request.x.c * request.x.h * request.x.w) {
    backward_reads_x = false;
    dx_may_share_dy = true;
  }

  // A rate of 0 keeps every branch as it is.
  absl::Status Forward(const ForwardBuffers& buffers) override {
    const double rate = buffers.training ? op_.drop_path : 0;
    return AddBranch(DeviceMaskKeyOf(context_, *buffers.batch, op_.layer, rate),
                     context_.type(), n_, size_, buffers.x, buffers.second,
                     buffers.y, context_.stream);
  }
  absl::Status Backward(const BackwardBuffers& buffers,
                        Model::GradientReady) override {
    return AddBranchBackward(
        DeviceMaskKeyOf(context_, *buffers.batch, op_.layer, op_.drop_path),
        context_.type(), n_, size_, buffers.dy, buffers.dx, buffers.dsecond,
        context_.stream);
  }

 private:
  const CudaPlanContext context_;
  const AddOp op_;
  const int64_t n_, size_;
};

}  // namespace

PlanOr PlanLayerNorm(const CudaPlanContext& context,
                     const PlanRequest& request) {
  return std::make_unique<LayerNormPlan>(context, request);
}

PlanOr PlanGelu(const CudaPlanContext& context, const PlanRequest& request) {
  return std::make_unique<GeluPlan>(context, request);
}

PlanOr PlanEmbed(const CudaPlanContext& context, const PlanRequest& request) {
  return std::make_unique<EmbedPlan>(context, request);
}

PlanOr PlanFirstPosition(const CudaPlanContext& context,
                         const PlanRequest& request) {
  return std::make_unique<FirstPositionPlan>(context, request);
}

PlanOr PlanDropout(const CudaPlanContext& context, const PlanRequest& request) {
  return std::make_unique<DropoutPlan>(context, request);
}

PlanOr PlanAdd(const CudaPlanContext& context, const PlanRequest& request) {
  return std::make_unique<AddPlan>(context, request);
}

}  // namespace lockstep
