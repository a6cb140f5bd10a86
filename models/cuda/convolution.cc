#include "models/cuda/convolution.h"

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "models/cuda/cudnn_plan.h"
#include "models/cuda/precision.h"
#include "syncbn/batch_norm.h"

namespace lockstep {
namespace {

// The operands' numbers in cuDNN's variant pack.
enum Uid : int64_t { kX = 1, kW, kY, kBias, kSum, kBiased };

using Dims = CudnnTensor::Sizes;  // n, c, h, w

Dims StridesOf(const Dims& dims, Layout layout) {
  const auto& [n, c, h, w] = dims;
  return layout == Layout::kNhwc ? Dims{h * w * c, 1, w * c, c}
                                 : PackedStrides(dims);
}

// cuDNN's names of a pass and of its attributes.
struct Names {
  cudnnBackendDescriptorType_t kind;
  cudnnBackendAttributeName_t how, x, w, y, alpha, beta;
};
constexpr Names kNames[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};

// Adds the convolution of x, w and y, or of their gradients.
absl::Status Convolve(const ConvolutionGraph& g, cudnnBackendDescriptor_t x,
                      cudnnBackendDescriptor_t w, cudnnBackendDescriptor_t y,
                      CudnnGraphBuilder& builder) {
  constexpr int64_t kSpatialDims = 2;
  constexpr std::array<int64_t, 2> kDilations = {1, 1};
  constexpr auto kType = CUDNN_DATA_FLOAT;
  constexpr auto kMode = CUDNN_CROSS_CORRELATION;
  constexpr float kOne = 1, kZero = 0;
  const std::array<int64_t, 2> strides = {g.stride, g.stride};
  const std::array<int64_t, 2> paddings = {g.padding, g.padding};
  LOCKSTEP_ASSIGN_OR_RETURN(
      const cudnnBackendDescriptor_t how,
      builder.Describe(
          CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
          {{CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, kType},
           {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
            kMode},
           {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64,
            kSpatialDims},
           {CUDNN_ATTR_CONVOLUTION_DILATIONS, kDilations},
           {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, strides},
           {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, paddings},
           {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, paddings}},
          "a convolution"));
  const Names& names = kNames[static_cast<size_t>(g.pass)];
  return builder.Add(names.kind,
                     {{names.how, how},
                      {names.x, x},
                      {names.w, w},
                      {names.y, y},
                      {names.alpha, CUDNN_TYPE_FLOAT, kOne},
                      {names.beta, CUDNN_TYPE_FLOAT, kZero}},
                     "the convolution");
}

// Adds bias and ReLU, if the graph has them.
absl::Status Finish(const ConvolutionGraph& g, const CudnnTensor& sum_tensor,
                    cudnnBackendDescriptor_t sum, cudnnBackendDescriptor_t y,
                    CudnnGraphBuilder& builder) {
  if (g.bias) {
    const Dims dims = {1, g.out_channels, 1, 1};
    LOCKSTEP_ASSIGN_OR_RETURN(
        const auto bias,
        builder.Tensor({.uid = kBias,
                        .type = TypeOf(g.precision),
                        .dims = dims,
                        .strides = StridesOf(dims, g.layout)}));
    auto biased = y;
    if (g.relu) {
      CudnnTensor virtual_sum = sum_tensor;
      virtual_sum.uid = kBiased;
      LOCKSTEP_ASSIGN_OR_RETURN(biased, builder.Tensor(virtual_sum));
    }
    LOCKSTEP_RETURN_IF_ERROR(
        builder.Pointwise(CUDNN_POINTWISE_ADD, sum, bias, biased));
    sum = biased;
  }
  return g.relu ? builder.Pointwise(CUDNN_POINTWISE_RELU_FWD, sum, nullptr, y)
                : absl::OkStatus();
}

// Builds the operation graph: one convolution, optionally followed by bias and
// ReLU.
absl::StatusOr<std::vector<CudnnDescriptor>> Build(const ConvolutionGraph& g) {
  CudnnGraphBuilder builder;
  const DataType type = TypeOf(g.precision);
  const auto tensor = [&](Uid uid, const Dims& dims, ConvolutionPass writer) {
    return CudnnTensor{
        .uid = uid,
        .type = g.pass == writer ? g.written.value_or(type) : type,
        .dims = dims,
        .strides = StridesOf(dims, g.layout)};
  };
  const CudnnTensor on_y =
      tensor(kY, {g.n, g.out_channels, g.out_h(), g.out_w()},
             ConvolutionPass::kForward);
  LOCKSTEP_ASSIGN_OR_RETURN(
      const auto x, builder.Tensor(tensor(kX, {g.n, g.c, g.h, g.w},
                                          ConvolutionPass::kInputGradient)));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const auto w,
      builder.Tensor(tensor(kW, {g.out_channels, g.c, g.kernel, g.kernel},
                            ConvolutionPass::kWeightGradient)));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto y, builder.Tensor(on_y));
  if (!g.bias && !g.relu) {
    LOCKSTEP_RETURN_IF_ERROR(Convolve(g, x, w, y, builder));
    return builder.Finish();
  }
  CudnnTensor on_sum = on_y;
  on_sum.uid = kSum;
  on_sum.type = DataType::kFloat32;
  on_sum.place = CudnnTensor::Place::kVirtual;
  LOCKSTEP_ASSIGN_OR_RETURN(const auto sum, builder.Tensor(on_sum));
  LOCKSTEP_RETURN_IF_ERROR(Convolve(g, x, w, sum, builder));
  LOCKSTEP_RETURN_IF_ERROR(Finish(g, on_sum, sum, y, builder));
  return builder.Finish();
}

absl::Status CheckGraph(const ConvolutionGraph& g) {
  if (g.layout == Layout::kNchw16c) {
    return absl::UnimplementedError(
        "cuDNN does not support the layout nchw16c");
  }
  const char* const wrong =
      g.n < 1 || g.c < 1 || g.h < 1 || g.w < 1 || g.out_channels < 1
          ? "a tensor is empty"
      : g.kernel < 1 || g.stride < 1 || g.padding < 0
          ? "kernel and stride must be at least 1, padding at least 0"
      : g.h + 2 * g.padding < g.kernel || g.w + 2 * g.padding < g.kernel
          ? "the kernel is larger than the padded input"
      : (g.bias || g.relu) && g.pass != ConvolutionPass::kForward
          ? "only the forward pass has bias and ReLU"
          : nullptr;
  return wrong == nullptr ? absl::OkStatus()
                          : absl::InvalidArgumentError(wrong);
}

absl::StatusOr<CudnnPlan> PlanOf(const CudnnDevice& device,
                                 const ConvolutionGraph& graph) {
  LOCKSTEP_RETURN_IF_ERROR(CheckGraph(graph));
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<CudnnDescriptor> parts, Build(graph));
  return CudnnPlan::Create(
      device, std::move(parts),
      /*may_round=*/graph.precision != ConvolutionPrecision::kFloat32);
}

}  // namespace

const char* Name(ConvolutionPass pass) {
  constexpr const char* kNames[] = {"forward", "input gradient",
                                    "weight gradient"};
  return kNames[static_cast<size_t>(pass)];
}

std::string Describe(const ConvolutionGraph& g) {
  return absl::StrCat(g.name, ": ", Name(g.pass), " ", Name(g.precision),
                      g.written ? absl::StrCat(" to ", Name(*g.written)) : "",
                      " ", Name(g.layout), " [", g.n, ",", g.c, ",", g.h, ",",
                      g.w, "] ", g.out_channels, "@", g.kernel, "x", g.kernel,
                      "/", g.stride, g.bias ? " bias" : "",
                      g.relu ? " relu" : "");
}

absl::StatusOr<ConvolutionPlan> ConvolutionPlan::Create(
    const CudnnDevice& device, const ConvolutionGraph& graph) {
  absl::StatusOr<CudnnPlan> plan = PlanOf(device, graph);
  if (!plan.ok()) return NameGraph(graph, plan.status());
  return ConvolutionPlan(graph, *std::move(plan));
}

absl::Status ConvolutionPlan::Execute(cudnnHandle_t handle,
                                      const ConvolutionOperands& operands,
                                      void* workspace) const {
  constexpr std::array<int64_t, 4> kUids = {kX, kW, kY, kBias};
  const std::array<void*, 4> pointers = {operands.x, operands.w, operands.y,
                                         operands.bias};
  const size_t count = graph_.bias ? 4 : 3;
  return NameGraph(graph_,
                   plan_.Execute(handle, std::span(kUids).first(count),
                                 std::span(pointers).first(count), workspace));
}

}  // namespace lockstep
