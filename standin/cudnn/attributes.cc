#include "standin/cudnn/attributes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "standin/cudnn/cudnn_graph.h"
#include "standin/cudnn/operations.h"

namespace lockstep::standin::cudnn {
namespace {

constexpr int64_t kMany = int64_t{1} << 30;

constexpr auto kInt = CUDNN_TYPE_INT64;
constexpr auto kType = CUDNN_TYPE_DATA_TYPE;
constexpr auto kDescriptor = CUDNN_TYPE_BACKEND_DESCRIPTOR;

// Every attribute that the stand-in knows.
constexpr AttributeRow kRows[] = {
    {kCard, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, 1,
     AttributeAccess::kOptional},
    {kCard, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0,
     kMany, AttributeAccess::kOptional},
    {kTensor, CUDNN_ATTR_TENSOR_DATA_TYPE, kType},
    {kTensor, CUDNN_ATTR_TENSOR_DIMENSIONS, kInt, 1, 8},
    {kTensor, CUDNN_ATTR_TENSOR_STRIDES, kInt, 1, 8},
    {kTensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, kInt},
    {kTensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kInt},
    {kTensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, 1,
     AttributeAccess::kOptional},
    {kTensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, 1,
     AttributeAccess::kOptional},
    {kConvolution, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, kType},
    {kConvolution, CUDNN_ATTR_CONVOLUTION_CONV_MODE,
     CUDNN_TYPE_CONVOLUTION_MODE},
    {kConvolution, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, kInt},
    {kConvolution, CUDNN_ATTR_CONVOLUTION_DILATIONS, kInt, 1, 8},
    {kConvolution, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, kInt, 1, 8},
    {kConvolution, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, kInt, 1, 8},
    {kConvolution, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, kInt, 1, 8},
    {kPointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE},
    {kPointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, kType},
    {kMatmul, CUDNN_ATTR_MATMUL_COMP_TYPE, kType},
    {kReduction, CUDNN_ATTR_REDUCTION_OPERATOR,
     CUDNN_TYPE_REDUCTION_OPERATOR_TYPE},
    {kReduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, kType},
    {kForward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, kDescriptor},
    {kForward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, kDescriptor},
    {kForward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, kDescriptor},
    {kForward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, kDescriptor},
    {kForward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
     CUDNN_TYPE_FLOAT},
    {kForward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT},
    {kInputGradient, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     kDescriptor},
    {kInputGradient, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, kDescriptor},
    {kInputGradient, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, kDescriptor},
    {kInputGradient, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, kDescriptor},
    {kInputGradient, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     CUDNN_TYPE_FLOAT},
    {kInputGradient, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
     CUDNN_TYPE_FLOAT},
    {kWeightGradient, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     kDescriptor},
    {kWeightGradient, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
     kDescriptor},
    {kWeightGradient, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
     kDescriptor},
    {kWeightGradient, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
     kDescriptor},
    {kWeightGradient, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     CUDNN_TYPE_FLOAT},
    {kWeightGradient, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
     CUDNN_TYPE_FLOAT},
    {kPointwiseOperation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
     kDescriptor},
    {kPointwiseOperation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, kDescriptor},
    {kPointwiseOperation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, kDescriptor, 1,
     1, AttributeAccess::kOptional},
    {kPointwiseOperation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, kDescriptor},
    {kMatmulOperation, CUDNN_ATTR_OPERATION_MATMUL_DESC, kDescriptor},
    {kMatmulOperation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, kDescriptor},
    {kMatmulOperation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, kDescriptor},
    {kMatmulOperation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, kDescriptor},
    {kReductionOperation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kDescriptor},
    {kReductionOperation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, kDescriptor},
    {kReductionOperation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, kDescriptor},
    {kReshapeOperation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, kDescriptor},
    {kReshapeOperation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, kDescriptor},
    {kAttentionOperation, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, kDescriptor},
    {kAttentionOperation, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, kDescriptor},
    {kAttentionOperation, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, kDescriptor},
    {kAttentionOperation, CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, kDescriptor},
    {kAttentionOperation, CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, kDescriptor,
     1, 1, AttributeAccess::kOptional},
    {kAttentionOperation, CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, kDescriptor},
    {kGraph, CUDNN_ATTR_OPERATIONGRAPH_OPS, kDescriptor, 1, 64},
    {kHeuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, kDescriptor},
    {kHeuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE},
    {kHeuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, kDescriptor},
    {kHeuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, kDescriptor, 0, 0,
     AttributeAccess::kReadOnly},
    {kEngine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, kInt, 0, 0,
     AttributeAccess::kReadOnly},
    {kEngine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 0, 0,
     AttributeAccess::kReadOnly},
    {kEngine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, 0, 0,
     AttributeAccess::kReadOnly},
    {kConfig, CUDNN_ATTR_ENGINECFG_ENGINE, kDescriptor, 0, 0,
     AttributeAccess::kReadOnly},
    {kConfig, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, kDescriptor, 0, 0,
     AttributeAccess::kReadOnly},
    {kKnob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 0, 0,
     AttributeAccess::kReadOnly},
    {kKnob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, kInt, 0, 0,
     AttributeAccess::kReadOnly},
    {kPlan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, kDescriptor},
    {kPlan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, kDescriptor},
    {kPlan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, kInt, 0, 0,
     AttributeAccess::kReadOnly},
    {kPack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, kInt, 1, kMany},
    {kPack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1,
     kMany},
    {kPack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, 1,
     AttributeAccess::kOptional},
};

constexpr TensorName kForwardTensors[] = {
    {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, &Operation::x},
    {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, &Operation::w},
    {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, &Operation::y}};
constexpr TensorName kInputGradientTensors[] = {
    {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, &Operation::x},
    {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, &Operation::w},
    {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, &Operation::y}};
constexpr TensorName kWeightGradientTensors[] = {
    {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, &Operation::x},
    {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, &Operation::w},
    {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, &Operation::y}};
constexpr TensorName kPointwiseTensors[] = {
    {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &Operation::x},
    {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &Operation::w},
    {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &Operation::y}};
constexpr TensorName kMatmulTensors[] = {
    {CUDNN_ATTR_OPERATION_MATMUL_ADESC, &Operation::x},
    {CUDNN_ATTR_OPERATION_MATMUL_BDESC, &Operation::w},
    {CUDNN_ATTR_OPERATION_MATMUL_CDESC, &Operation::y}};
constexpr TensorName kReductionTensors[] = {
    {CUDNN_ATTR_OPERATION_REDUCTION_XDESC, &Operation::x},
    {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, &Operation::y}};
constexpr TensorName kReshapeTensors[] = {
    {CUDNN_ATTR_OPERATION_RESHAPE_XDESC, &Operation::x},
    {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, &Operation::y}};
constexpr TensorName kAttentionTensors[] = {
    {CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, &Operation::x},
    {CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, &Operation::w},
    {CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, &Operation::v},
    {CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, &Operation::y},
    {CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, &Operation::stats},
    {CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, &Operation::scale}};

constexpr OperationRow kOperations[] = {
    {kForward, Operation::Kind::kForward, kForwardTensors,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, kConvolution,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    {kInputGradient, Operation::Kind::kInputGradient, kInputGradientTensors,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, kConvolution,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    {kWeightGradient, Operation::Kind::kWeightGradient, kWeightGradientTensors,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, kConvolution,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
    {kPointwiseOperation, Operation::Kind::kAdd, kPointwiseTensors,
     CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kPointwise},
    {kMatmulOperation, Operation::Kind::kMatmul, kMatmulTensors,
     CUDNN_ATTR_OPERATION_MATMUL_DESC, kMatmul},
    {kReductionOperation, Operation::Kind::kSum, kReductionTensors,
     CUDNN_ATTR_OPERATION_REDUCTION_DESC, kReduction},
    {kReshapeOperation, Operation::Kind::kReshape, kReshapeTensors,
     std::nullopt},
    {kAttentionOperation, Operation::Kind::kAttention, kAttentionTensors,
     std::nullopt}};

}  // namespace

std::span<const AttributeRow> AttributeRows() { return kRows; }

std::string AttributeLabel(cudnnBackendDescriptorType_t of,
                           cudnnBackendAttributeName_t name) {
  return absl::StrCat("attribute ", static_cast<int>(name),
                      " of descriptor type ", static_cast<int>(of));
}

absl::StatusOr<const AttributeRow*> FindAttribute(
    cudnnBackendDescriptorType_t of, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type) {
  for (const AttributeRow& row : AttributeRows()) {
    if (row.of != of || row.name != name) continue;
    if (row.type == type) return &row;
    return absl::InvalidArgumentError(absl::StrCat(
        AttributeLabel(of, name), " has values of type ",
        static_cast<int>(row.type), ", not ", static_cast<int>(type)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the stand-in has no ", AttributeLabel(of, name)));
}

const OperationRow* FindOperation(cudnnBackendDescriptorType_t type) {
  const auto* const found =
      std::ranges::find(kOperations, type, &OperationRow::type);
  return found == std::end(kOperations) ? nullptr : found;
}

std::optional<Operation::Kind> KindOf(cudnnPointwiseMode_t mode) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD:
      return Operation::Kind::kAdd;
    case CUDNN_POINTWISE_SUB:
      return Operation::Kind::kSubtract;
    case CUDNN_POINTWISE_MUL:
      return Operation::Kind::kMultiply;
    case CUDNN_POINTWISE_RELU_FWD:
      return Operation::Kind::kRelu;
    case CUDNN_POINTWISE_EXP:
      return Operation::Kind::kExp;
  }
  return std::nullopt;
}

size_t SizeOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_BOOLEAN:
      return sizeof(bool);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:  // CUDNN_TYPE_FLOAT and the enums.
      return 4;
  }
}

}  // namespace lockstep::standin::cudnn
