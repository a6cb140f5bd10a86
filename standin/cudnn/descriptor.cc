#include "standin/cudnn/descriptor.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "standin/cudnn/attributes.h"
#include "standin/cudnn/cudnn_graph.h"
#include "standin/cudnn/operations.h"
#include "standin/cudnn/plan.h"

namespace lockstep::standin::cudnn {
namespace {

// Returns whether two elements may lie in one place.
bool Overlap(const GraphTensor& t) {
  std::array<size_t, 4> axes = {0, 1, 2, 3};
  std::ranges::sort(axes, {}, [&](size_t axis) { return t.strides[axis]; });
  int64_t extent = 1;  // From the first element to the last one's end.
  for (const size_t axis : axes) {
    if (t.dims[axis] == 1) continue;
    if (t.strides[axis] < extent) return true;
    extent += (t.dims[axis] - 1) * t.strides[axis];
  }
  return false;
}

absl::Status CheckTensor(const GraphTensor& t) {
  if (std::ranges::min(t.dims) < 1 || std::ranges::min(t.strides) < 1 ||
      t.alignment < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", t.uid,
                     ": dimensions, strides and alignment must be at least 1"));
  }
  if (Overlap(t)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", t.uid, ": the strides let elements overlap"));
  }
  if (t.is_by_value && t.is_virtual) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", t.uid, " is virtual and passed by value"));
  }
  return t.is_by_value && t.count() != 1
             ? absl::UnimplementedError(absl::StrCat(
                   "tensor ", t.uid, " is passed by value and has ", t.count(),
                   " elements, not 1"))
             : absl::OkStatus();
}

template <size_t kSize>
std::array<int64_t, kSize> ToArray(const std::vector<int64_t>& values) {
  std::array<int64_t, kSize> array = {};
  std::ranges::copy_n(values.begin(), kSize, array.begin());
  return array;
}

}  // namespace

absl::Status Descriptor::SetAttribute(Name name,
                                      cudnnBackendAttributeType_t type,
                                      int64_t count, const void* values) {
  if (finalized_) {
    return absl::InvalidArgumentError(absl::StrCat(
        AttributeLabel(type_, name), ": the descriptor is finalized"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const AttributeRow* const row,
                            FindAttribute(type_, name, type));
  if (row->access == AttributeAccess::kReadOnly) {
    return absl::InvalidArgumentError(
        absl::StrCat(AttributeLabel(type_, name), " cannot be set"));
  }
  if (count < row->least || count > row->most) {
    return absl::InvalidArgumentError(absl::StrCat(
        AttributeLabel(type_, name), " cannot have ", count, " values"));
  }
  if (values == nullptr && count > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(AttributeLabel(type_, name), ": the values are null"));
  }
  Attribute attribute;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    auto* const* const handles = static_cast<void* const*>(values);
    for (int64_t i = 0; i < count; ++i) {
      if (handles[i] == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            AttributeLabel(type_, name), ": a descriptor is null"));
      }
      attribute.descriptors.push_back(
          *static_cast<DescriptorHandle*>(handles[i]));
    }
  } else {
    const char* const begin = static_cast<const char*>(values);
    attribute.bytes.assign(begin,
                           begin + static_cast<size_t>(count) * SizeOf(type));
  }
  attributes_[name] = std::move(attribute);
  return absl::OkStatus();
}

absl::Status Descriptor::GetAttribute(Name name,
                                      cudnnBackendAttributeType_t type,
                                      int64_t most, int64_t* count,
                                      void* values) const {
  if (!finalized_) {
    return absl::FailedPreconditionError(absl::StrCat(
        AttributeLabel(type_, name), ": the descriptor is not finalized"));
  }
  LOCKSTEP_RETURN_IF_ERROR(FindAttribute(type_, name, type).status());
  const auto found = attributes_.find(name);
  const Attribute attribute =
      found == attributes_.end() ? Attribute() : found->second;
  const bool refers = type == CUDNN_TYPE_BACKEND_DESCRIPTOR;
  const auto size =
      static_cast<int64_t>(refers ? attribute.descriptors.size()
                                  : attribute.bytes.size() / SizeOf(type));
  *count = most == 0 ? size : std::min(size, most);
  if (most == 0 || *count == 0) return absl::OkStatus();
  if (!refers) {
    std::memcpy(values, attribute.bytes.data(),
                static_cast<size_t>(*count) * SizeOf(type));
    return absl::OkStatus();
  }
  for (int64_t i = 0; i < *count; ++i) {
    auto* const to =
        static_cast<DescriptorHandle*>(static_cast<void**>(values)[i]);
    const DescriptorHandle& from =
        attribute.descriptors[static_cast<size_t>(i)];
    if (to == nullptr || (*to)->type() != from->type()) {
      return absl::InvalidArgumentError(
          absl::StrCat(AttributeLabel(type_, name),
                       " must be read into descriptors of type ",
                       static_cast<int>(from->type())));
    }
    *to = from;
  }
  return absl::OkStatus();
}

absl::Status Descriptor::Finalize() {
  if (finalized_) {
    return absl::InvalidArgumentError(absl::StrCat("a descriptor of type ",
                                                   static_cast<int>(type_),
                                                   " is finalized twice"));
  }
  for (const AttributeRow& row : AttributeRows()) {
    if (row.of == type_ && row.access == AttributeAccess::kRequired &&
        !attributes_.contains(row.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(AttributeLabel(type_, row.name), " is not set"));
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(FinalizeByType());
  finalized_ = true;
  return absl::OkStatus();
}

absl::Status Descriptor::FinalizeByType() {
  const OperationRow* const operation = FindOperation(type_);
  if (operation != nullptr) return FinalizeOperation(*operation);
  switch (type_) {
    case kCard:
      return FinalizeCard();
    case kTensor:
      return FinalizeTensor();
    case kConvolution:
      return FinalizeConvolution();
    case kPointwise:
      return absl::OkStatus();
    case kMatmul:
      return FinalizeMatmul();
    case kReduction:
      return FinalizeReduction();
    case kGraph:
      return FinalizeGraph();
    case kHeuristics:
      return FinalizeHeuristics();
    case kPlan:
      return FinalizePlan();
    case kPack:
      return FinalizePack();
    default:
      return absl::UnimplementedError(
          absl::StrCat("only the stand-in makes descriptors of type ",
                       static_cast<int>(type_)));
  }
}

absl::StatusOr<const Descriptor*> Descriptor::Reference(
    Name name, cudnnBackendDescriptorType_t type) const {
  const Descriptor* const found =
      attributes_.at(name).descriptors.front().get();
  if (found->type() != type) {
    return absl::InvalidArgumentError(absl::StrCat(
        AttributeLabel(type_, name), " is a descriptor of type ",
        static_cast<int>(found->type()), ", not ", static_cast<int>(type)));
  }
  if (!found->finalized()) {
    return absl::InvalidArgumentError(
        absl::StrCat(AttributeLabel(type_, name), " is not finalized"));
  }
  return found;
}

absl::Status Descriptor::FinalizeCard() {
  constexpr auto kJson = CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION;
  const bool of_handle =
      One<cudnnHandle_t>(CUDNN_ATTR_DEVICEPROP_HANDLE) != nullptr;
  if (of_handle) {
    constexpr char kText[] = "{\"name\": \"stand-in\"}";
    attributes_[kJson].bytes.assign(kText, kText + sizeof(kText) - 1);
  }
  return One<char>(kJson) == '{' ? absl::OkStatus()
                                 : absl::InvalidArgumentError(
                                       "the card's JSON does not begin with {");
}

absl::Status Descriptor::FinalizeTensor() {
  const auto dims = All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  GraphTensor t;
  t.type = One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  t.uid = One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  t.alignment = One<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  t.is_virtual = One<unsigned char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL) != 0;
  t.is_by_value = One<unsigned char>(CUDNN_ATTR_TENSOR_IS_BY_VALUE) != 0;
  if (dims.size() != strides.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", t.uid, " has ", dims.size(),
                     " dimensions, but ", strides.size(), " strides"));
  }
  if (dims.size() != 4) {
    return absl::UnimplementedError(absl::StrCat(
        "tensor ", t.uid, " has ", dims.size(), " dimensions, not 4"));
  }
  if (t.type != CUDNN_DATA_FLOAT && t.type != CUDNN_DATA_HALF &&
      t.type != CUDNN_DATA_BFLOAT16) {
    return absl::UnimplementedError(absl::StrCat(
        "tensor ", t.uid, " has the type ", static_cast<int>(t.type)));
  }
  t.dims = ToArray<4>(dims);
  t.strides = ToArray<4>(strides);
  LOCKSTEP_RETURN_IF_ERROR(CheckTensor(t));
  tensor_ = t;
  return absl::OkStatus();
}

absl::Status Descriptor::FinalizeConvolution() {
  if (One<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) !=
          CUDNN_DATA_FLOAT ||
      One<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) !=
          CUDNN_CROSS_CORRELATION ||
      One<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) != 2) {
    return absl::UnimplementedError(
        "the stand-in computes cross-correlations of two dimensions with sums "
        "in float32");
  }
  for (const Name name :
       {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
        CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS,
        CUDNN_ATTR_CONVOLUTION_POST_PADDINGS}) {
    if (All<int64_t>(name).size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat(AttributeLabel(type_, name), " does not have 2 values"));
    }
  }
  return absl::OkStatus();
}

absl::Status Descriptor::FinalizeMatmul() {
  return One<cudnnDataType_t>(CUDNN_ATTR_MATMUL_COMP_TYPE) == CUDNN_DATA_FLOAT
             ? absl::OkStatus()
             : absl::UnimplementedError(
                   "the stand-in's matmul has sums in float32");
}

absl::Status Descriptor::FinalizeReduction() {
  return One<cudnnDataType_t>(CUDNN_ATTR_REDUCTION_COMP_TYPE) ==
                     CUDNN_DATA_FLOAT &&
                 One<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR) ==
                     CUDNN_REDUCE_TENSOR_ADD
             ? absl::OkStatus()
             : absl::UnimplementedError(
                   "the stand-in's reductions are sums in float32");
}

absl::Status Descriptor::FinalizeOperation(const OperationRow& row) {
  Operation op;
  op.kind = row.kind;
  for (const auto& [name, tensor] : row.tensors) {
    if (!attributes_.contains(name)) continue;
    LOCKSTEP_ASSIGN_OR_RETURN(const Descriptor* const found,
                              Reference(name, kTensor));
    op.*tensor = found->tensor_;
  }
  if (row.how.has_value()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Descriptor* const how,
                              Reference(*row.how, row.how_type));
    if (row.how_type == kConvolution) {
      LOCKSTEP_RETURN_IF_ERROR(ReadConvolution(row, *how, op));
    } else if (row.how_type == kPointwise) {
      LOCKSTEP_RETURN_IF_ERROR(ReadPointwise(*how, op));
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckOperation(op));
  operations_ = std::make_shared<const std::vector<Operation>>(1, op);
  return absl::OkStatus();
}

absl::Status Descriptor::ReadConvolution(const OperationRow& row,
                                         const Descriptor& how,
                                         Operation& op) const {
  const auto sizes = [&how](Name name) {
    return ToArray<2>(how.All<int64_t>(name));
  };
  op.strides = sizes(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  op.dilations = sizes(CUDNN_ATTR_CONVOLUTION_DILATIONS);
  op.pre_paddings = sizes(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  op.post_paddings = sizes(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
  return One<float>(row.alpha) == 1 && One<float>(row.beta) == 0
             ? absl::OkStatus()
             : absl::UnimplementedError(
                   "the stand-in's convolutions have alpha = 1 and beta = 0");
}

absl::Status Descriptor::ReadPointwise(const Descriptor& how,
                                       Operation& op) const {
  const auto mode = how.One<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
  const std::optional<Operation::Kind> kind = KindOf(mode);
  if (!kind.has_value()) {
    return absl::UnimplementedError(absl::StrCat(
        "the stand-in has no pointwise mode ", static_cast<int>(mode)));
  }
  op.kind = *kind;
  const bool takes_two = op.operands().size() == 2;
  if (takes_two != op.w.exists()) {
    return absl::InvalidArgumentError(absl::StrCat(
        AttributeLabel(type_, CUDNN_ATTR_OPERATION_POINTWISE_BDESC),
        takes_two ? " is not set" : " is set"));
  }
  return absl::OkStatus();
}

absl::Status Descriptor::FinalizeGraph() {
  constexpr auto kOps = CUDNN_ATTR_OPERATIONGRAPH_OPS;
  std::vector<Operation> all;
  for (const DescriptorHandle& each : attributes_.at(kOps).descriptors) {
    if (each->operations() == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          AttributeLabel(type_, kOps), " has a descriptor of type ",
          static_cast<int>(each->type()),
          " that is not a finalized operation"));
    }
    all.insert(all.end(), each->operations()->begin(),
               each->operations()->end());
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckGraph(all));
  operations_ = std::make_shared<const std::vector<Operation>>(std::move(all));
  return absl::OkStatus();
}

// Mode A proposes the one engine; the fallback mode proposes none.
absl::Status Descriptor::FinalizeHeuristics() {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const Descriptor* const graph,
      Reference(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, kGraph));
  LOCKSTEP_RETURN_IF_ERROR(
      Reference(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, kCard).status());
  if (!HasEngine(*graph->operations()) ||
      One<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE) !=
          CUDNN_HEUR_MODE_A) {
    return absl::OkStatus();
  }
  const auto engine = std::make_shared<Descriptor>(kEngine);
  const auto config = std::make_shared<Descriptor>(kConfig);
  engine->Write(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, int64_t{0});
  config->attributes_[CUDNN_ATTR_ENGINECFG_ENGINE].descriptors = {engine};
  attributes_[CUDNN_ATTR_ENGINEHEUR_RESULTS].descriptors = {config};
  for (Descriptor* const made : {engine.get(), config.get()}) {
    made->operations_ = graph->operations();
    made->finalized_ = true;
  }
  return absl::OkStatus();
}

absl::Status Descriptor::FinalizePlan() {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const Descriptor* const config,
      Reference(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, kConfig));
  LOCKSTEP_RETURN_IF_ERROR(
      Reference(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, kCard).status());
  operations_ = config->operations();
  Write(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, WorkspaceBytes(*operations_));
  return absl::OkStatus();
}

absl::Status Descriptor::FinalizePack() {
  const auto uids = All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  if (uids.size() != pointers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a variant pack has ", uids.size(), " numbers, but ",
                     pointers.size(), " pointers"));
  }
  if (std::set<int64_t>(uids.begin(), uids.end()).size() != uids.size()) {
    return absl::InvalidArgumentError("a variant pack has a number twice");
  }
  return absl::OkStatus();
}

}  // namespace lockstep::standin::cudnn
