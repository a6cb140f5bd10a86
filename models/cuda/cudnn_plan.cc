#include "models/cuda/cudnn_plan.h"

#include <cudnn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "syncbn/cuda/cudnn_status.h"

namespace lockstep {
namespace {

constexpr cudnnDataType_t kFloat = CUDNN_DATA_FLOAT;

// Returns cuDNN's error with the last message of its log.
absl::Status BackendStatus(cudnnStatus_t error, absl::string_view what) {
  if (error == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  std::array<char, 512> words = {};
  cudnnGetLastErrorString(words.data(), words.size());
  for (char& c : words) c = c == '\n' ? ' ' : c;
  const absl::Status status = CudnnStatus(error, what);
  return {status.code(), absl::StrCat(status.message(), " (",
                                      absl::string_view(words.data()), ")")};
}

absl::StatusOr<CudnnDescriptor> Make(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(BackendStatus(
      cudnnBackendCreateDescriptor(type, &descriptor),
      absl::StrCat("creating descriptor ", static_cast<int>(type))));
  return CudnnDescriptor(descriptor);
}

// Makes a descriptor with these attributes.
absl::StatusOr<CudnnDescriptor> Make(cudnnBackendDescriptorType_t type,
                                     std::span<const CudnnAttribute> attributes,
                                     const char* what) {
  LOCKSTEP_ASSIGN_OR_RETURN(CudnnDescriptor made, Make(type));
  for (const CudnnAttribute& attribute : attributes) {
    LOCKSTEP_RETURN_IF_ERROR(BackendStatus(
        cudnnBackendSetAttribute(made.get(), attribute.name, attribute.type,
                                 attribute.count, attribute.values),
        absl::StrCat(what, ": setting attribute ",
                     static_cast<int>(attribute.name))));
  }
  LOCKSTEP_RETURN_IF_ERROR(
      BackendStatus(cudnnBackendFinalize(made.get()), what));
  return made;
}

// Makes a descriptor with the attributes of a list.
absl::StatusOr<CudnnDescriptor> Make(
    cudnnBackendDescriptorType_t type,
    std::initializer_list<CudnnAttribute> attributes, const char* what) {
  return Make(type, std::span(attributes.begin(), attributes.size()), what);
}

// Returns at most `most` values of an attribute.
template <typename T>
absl::StatusOr<std::vector<T>> Get(cudnnBackendDescriptor_t descriptor,
                                   cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type,
                                   int64_t most) {
  std::vector<T> values(static_cast<size_t>(most));
  int64_t count = 0;
  LOCKSTEP_RETURN_IF_ERROR(BackendStatus(
      cudnnBackendGetAttribute(descriptor, name, type, most, &count,
                               values.data()),
      absl::StrCat("reading attribute ", static_cast<int>(name))));
  values.resize(static_cast<size_t>(std::min(count, most)));
  return values;
}

// Returns the descriptors of an attribute, copied into new ones of type `kind`.
absl::StatusOr<std::vector<CudnnDescriptor>> GetDescriptors(
    cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
    cudnnBackendDescriptorType_t kind, int64_t most) {
  std::vector<CudnnDescriptor> found;
  std::vector<cudnnBackendDescriptor_t> pointers;
  for (int64_t i = 0; i < most; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(CudnnDescriptor one, Make(kind));
    pointers.push_back(one.get());
    found.push_back(std::move(one));
  }
  int64_t count = 0;
  LOCKSTEP_RETURN_IF_ERROR(BackendStatus(
      cudnnBackendGetAttribute(descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                               most, &count, pointers.data()),
      absl::StrCat("reading attribute ", static_cast<int>(name))));
  found.resize(static_cast<size_t>(std::min(count, most)));
  return found;
}

// The facts about an engine configuration, as cuDNN reports them.
struct EngineFacts {
  std::string name;
  std::string notes;
  bool unwanted = false;       // Nondeterministic, or sums below float32.
  bool rounds_inputs = false;  // Rounds float32 inputs.
};

absl::StatusOr<EngineFacts> ReadEngineFacts(cudnnBackendDescriptor_t config) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<CudnnDescriptor> engines,
                            GetDescriptors(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                           CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1));
  cudnnBackendDescriptor_t const engine = engines.at(0).get();
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> index,
                            Get<int64_t>(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                         CUDNN_TYPE_INT64, 1));
  EngineFacts facts;
  facts.name = absl::StrCat("eng", index.at(0));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<CudnnDescriptor> choices,
      GetDescriptors(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                     CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                     CUDNN_KNOB_TYPE_COUNTS));
  for (const CudnnDescriptor& choice : choices) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::vector<cudnnBackendKnobType_t> knob,
        Get<cudnnBackendKnobType_t>(choice.get(),
                                    CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                    CUDNN_TYPE_KNOB_TYPE, 1));
    LOCKSTEP_ASSIGN_OR_RETURN(
        const std::vector<int64_t> value,
        Get<int64_t>(choice.get(), CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE,
                     CUDNN_TYPE_INT64, 1));
    absl::StrAppend(&facts.name, " k", static_cast<int>(knob.at(0)), "=",
                    value.at(0));
  }
  const auto note = [&facts](const char* text) {
    absl::StrAppend(&facts.notes, facts.notes.empty() ? "" : ", ", text);
  };
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<cudnnBackendNumericalNote_t> numerical,
      Get<cudnnBackendNumericalNote_t>(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                       CUDNN_TYPE_NUMERICAL_NOTE,
                                       CUDNN_NUMERICAL_NOTE_TYPE_COUNT));
  for (const cudnnBackendNumericalNote_t about : numerical) {
    constexpr const char* kNumerical[] = {
        "tensor core",  "rounds inputs",    "reduced precision sums",
        "FFT",          "nondeterministic", "Winograd",
        "Winograd 4x4", "Winograd 6x6",     "Winograd 13x13",
        "keeps NaN"};
    // The installed library may be newer than the header and report unknown
    // notes.
    const auto index = static_cast<size_t>(about);
    note(index < std::size(kNumerical) ? kNumerical[index] : "?");
    facts.unwanted |= about == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
                      about == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION;
    facts.rounds_inputs |= about == CUDNN_NUMERICAL_NOTE_TENSOR_CORE ||
                           about == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<cudnnBackendBehaviorNote_t> behavior,
      Get<cudnnBackendBehaviorNote_t>(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
                                      CUDNN_TYPE_BEHAVIOR_NOTE,
                                      CUDNN_BEHAVIOR_NOTE_TYPE_COUNT));
  for (const cudnnBackendBehaviorNote_t about : behavior) {
    if (about == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) {
      note("runtime compilation");
    }
  }
  return facts;
}

// Returns the configurations that cuDNN's heuristics propose, best first.
absl::StatusOr<std::vector<CudnnDescriptor>> ProposeConfigurations(
    const CudnnDevice& device, cudnnBackendDescriptor_t graph,
    cudnnBackendHeurMode_t mode) {
  constexpr int64_t kMost = 64;
  LOCKSTEP_ASSIGN_OR_RETURN(
      const CudnnDescriptor heuristics,
      Make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
           {{CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph},
            {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode},
            {CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device.descriptor()}},
           "the heuristics"));
  return GetDescriptors(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                        CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kMost);
}

absl::StatusOr<CudnnDescriptor> BuildPlan(const CudnnDevice& device,
                                          cudnnBackendDescriptor_t config) {
  return Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
              {{CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config},
               {CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device.descriptor()}},
              "an execution plan");
}

}  // namespace

absl::StatusOr<CudnnDevice> CudnnDevice::OfHandle(cudnnHandle_t handle) {
  LOCKSTEP_ASSIGN_OR_RETURN(
      CudnnDescriptor device,
      Make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
           {{CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, handle}},
           "asking for the card"));
  return CudnnDevice(std::move(device));
}

absl::StatusOr<CudnnDevice> CudnnDevice::OfDescription(absl::string_view json) {
  absl::StatusOr<CudnnDescriptor> device =
      Make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
           {{CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
             json.size(), json.data()}},
           "a card's description");
  if (!device.ok()) {
    return absl::InvalidArgumentError(device.status().message());
  }
  return CudnnDevice(*std::move(device));
}

absl::StatusOr<std::string> CudnnDevice::Description() const {
  int64_t size = 0;
  constexpr auto kJson = CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION;
  LOCKSTEP_RETURN_IF_ERROR(BackendStatus(
      cudnnBackendGetAttribute(descriptor(), kJson, CUDNN_TYPE_CHAR, 0, &size,
                               nullptr),
      "a description's size"));
  LOCKSTEP_ASSIGN_OR_RETURN(
      const std::vector<char> json,
      Get<char>(descriptor(), kJson, CUDNN_TYPE_CHAR, size));
  return std::string(json.begin(), json.end());
}

absl::StatusOr<cudnnBackendDescriptor_t> CudnnGraphBuilder::Tensor(
    const CudnnTensor& tensor) {
  constexpr int64_t kAlignment = 16;
  const bool is_virtual = tensor.place == CudnnTensor::Place::kVirtual;
  const bool is_scalar = tensor.place == CudnnTensor::Place::kScalar;
  LOCKSTEP_ASSIGN_OR_RETURN(const cudnnDataType_t type,
                            CudnnTypeOf(tensor.type));
  return Describe(
      CUDNN_BACKEND_TENSOR_DESCRIPTOR,
      {{CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type},
       {CUDNN_ATTR_TENSOR_DIMENSIONS, tensor.dims},
       {CUDNN_ATTR_TENSOR_STRIDES, tensor.strides},
       {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, tensor.uid},
       {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment},
       {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual},
       {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, is_scalar}},
      "a tensor");
}

absl::StatusOr<cudnnBackendDescriptor_t> CudnnGraphBuilder::Describe(
    cudnnBackendDescriptorType_t type,
    std::initializer_list<CudnnAttribute> attributes, const char* what) {
  LOCKSTEP_ASSIGN_OR_RETURN(CudnnDescriptor made, Make(type, attributes, what));
  made_.push_back(std::move(made));
  return made_.back().get();
}

absl::Status CudnnGraphBuilder::Add(
    cudnnBackendDescriptorType_t type,
    std::initializer_list<CudnnAttribute> attributes, const char* what) {
  LOCKSTEP_ASSIGN_OR_RETURN(const cudnnBackendDescriptor_t operation,
                            Describe(type, attributes, what));
  operations_.push_back(operation);
  return absl::OkStatus();
}

absl::Status CudnnGraphBuilder::Pointwise(cudnnPointwiseMode_t mode,
                                          cudnnBackendDescriptor_t x,
                                          cudnnBackendDescriptor_t b,
                                          cudnnBackendDescriptor_t y) {
  constexpr const char* kWhat = "a pointwise operation";
  constexpr auto kType = CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
  LOCKSTEP_ASSIGN_OR_RETURN(
      const cudnnBackendDescriptor_t how,
      Describe(CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
               {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode},
                {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, kFloat}},
               kWhat));
  if (b == nullptr) {
    return Add(kType,
               {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how},
                {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
                {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}},
               kWhat);
  }
  return Add(kType,
             {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how},
              {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x},
              {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b},
              {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y}},
             kWhat);
}

absl::StatusOr<std::vector<CudnnDescriptor>> CudnnGraphBuilder::Finish() {
  LOCKSTEP_RETURN_IF_ERROR(
      Describe(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
               {{CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                 operations_.size(), operations_.data()}},
               "the operation graph")
          .status());
  operations_.clear();
  return std::exchange(made_, {});
}

absl::StatusOr<CudnnPlan> CudnnPlan::Create(const CudnnDevice& device,
                                            std::vector<CudnnDescriptor> graph,
                                            bool may_round) {
  CudnnPlan made;
  made.parts_ = std::move(graph);
  cudnnBackendDescriptor_t const operations = made.parts_.back().get();
  absl::Status last = absl::UnimplementedError("cuDNN proposed none");
  // The fallback mode's configurations are slower, but exist where mode A has
  // none.
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    absl::StatusOr<std::vector<CudnnDescriptor>> configs =
        ProposeConfigurations(device, operations, mode);
    if (!configs.ok()) {
      last = configs.status();
      continue;
    }
    for (CudnnDescriptor& config : *configs) {
      LOCKSTEP_ASSIGN_OR_RETURN(EngineFacts facts,
                                ReadEngineFacts(config.get()));
      if (facts.unwanted || (facts.rounds_inputs && !may_round)) {
        last = absl::UnimplementedError(
            absl::StrCat(facts.name, " is excluded: ", facts.notes));
      } else if (auto plan = BuildPlan(device, config.get()); plan.ok()) {
        LOCKSTEP_ASSIGN_OR_RETURN(
            const std::vector<int64_t> workspace,
            Get<int64_t>(plan->get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                         CUDNN_TYPE_INT64, 1));
        made.workspace_bytes_ = workspace.at(0);
        made.engine_ = std::move(facts.name);
        made.notes_ = std::move(facts.notes);
        made.plan_ = *std::move(plan);
        made.parts_.push_back(std::move(config));
        return made;
      } else {
        last = plan.status();
      }
      ++made.rejected_count_;
    }
  }
  return absl::Status(
      last.code(), absl::StrCat("no plan among ", made.rejected_count_,
                                " configurations; the last: ", last.message()));
}

absl::Status CudnnPlan::Execute(cudnnHandle_t handle,
                                std::span<const int64_t> uids,
                                std::span<void* const> pointers,
                                void* workspace) const {
  LOCKSTEP_ASSIGN_OR_RETURN(
      const CudnnDescriptor pack,
      Make(
          CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
          {{CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, uids},
           {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
            pointers.size(), pointers.data()},
           {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace}},
          "operands"));
  return BackendStatus(cudnnBackendExecute(handle, plan_.get(), pack.get()),
                       "cudnnBackendExecute");
}

}  // namespace lockstep
