// The attributes of the descriptors of cuDNN's stand-in, as a table.
#ifndef LOCKSTEP_STANDIN_CUDNN_ATTRIBUTES_H_
#define LOCKSTEP_STANDIN_CUDNN_ATTRIBUTES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "standin/cudnn/cudnn_graph.h"
#include "standin/cudnn/operations.h"

namespace lockstep::standin::cudnn {

// The types of descriptors, with shorter names than cuDNN's.
inline constexpr auto kCard = CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR;
inline constexpr auto kTensor = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
inline constexpr auto kConvolution = CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR;
inline constexpr auto kPointwise = CUDNN_BACKEND_POINTWISE_DESCRIPTOR;
inline constexpr auto kMatmul = CUDNN_BACKEND_MATMUL_DESCRIPTOR;
inline constexpr auto kReduction = CUDNN_BACKEND_REDUCTION_DESCRIPTOR;
inline constexpr auto kForward =
    CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
inline constexpr auto kInputGradient =
    CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
inline constexpr auto kWeightGradient =
    CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
inline constexpr auto kPointwiseOperation =
    CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
inline constexpr auto kMatmulOperation =
    CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
inline constexpr auto kReductionOperation =
    CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR;
inline constexpr auto kReshapeOperation =
    CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
inline constexpr auto kAttentionOperation =
    CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR;
inline constexpr auto kGraph = CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
inline constexpr auto kHeuristics = CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR;
inline constexpr auto kEngine = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
inline constexpr auto kConfig = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
inline constexpr auto kKnob = CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR;
inline constexpr auto kPlan = CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
inline constexpr auto kPack = CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR;

// The origin of an attribute's value.
enum class AttributeAccess {
  kRequired,  // The caller sets the attribute before finalizing.
  kOptional,
  kReadOnly,  // The stand-in sets it.
};

struct AttributeRow {
  cudnnBackendDescriptorType_t of;
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  // The smallest and largest number of values that can be set.
  int64_t least = 1, most = 1;
  AttributeAccess access = AttributeAccess::kRequired;
};

// Returns every attribute that the stand-in knows.
std::span<const AttributeRow> AttributeRows();

// Returns the attribute's row. Error: kInvalidArgument if the descriptor has no
// such attribute of this type.
absl::StatusOr<const AttributeRow*> FindAttribute(
    cudnnBackendDescriptorType_t of, cudnnBackendAttributeName_t name,
    cudnnBackendAttributeType_t type);

// Returns "attribute 902 of descriptor type 17".
std::string AttributeLabel(cudnnBackendDescriptorType_t of,
                           cudnnBackendAttributeName_t name);

// An attribute of an operation that is a tensor, and that tensor's place in
// Operation.
struct TensorName {
  cudnnBackendAttributeName_t name;
  GraphTensor Operation::*tensor;
};

// A type of operations. Tensors of a convolution stand for their gradients too.
struct OperationRow {
  cudnnBackendDescriptorType_t type;
  Operation::Kind kind;  // For pointwise operations, the mode decides.
  std::span<const TensorName> tensors;
  // The attribute that says how to compute, and its descriptor's type.
  std::optional<cudnnBackendAttributeName_t> how;
  cudnnBackendDescriptorType_t how_type = {};
  cudnnBackendAttributeName_t alpha = {}, beta = {};  // Of convolutions.
};

// Returns the type's row, or null if it is no operation's type.
const OperationRow* FindOperation(cudnnBackendDescriptorType_t type);

// Returns the pointwise operation, or nothing if the stand-in does not have it.
std::optional<Operation::Kind> KindOf(cudnnPointwiseMode_t mode);

// Returns the size of one value of an attribute.
size_t SizeOf(cudnnBackendAttributeType_t type);

}  // namespace lockstep::standin::cudnn

#endif  // LOCKSTEP_STANDIN_CUDNN_ATTRIBUTES_H_
