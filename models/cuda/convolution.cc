#include "models/cuda/convolution.h"

#include <cudnn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
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
#include "models/cuda/precision.h"
#include "syncbn/batch_norm.h"
#include "syncbn/cuda/cudnn_status.h"

namespace lockstep {
namespace {

// The operands' numbers in cuDNN's variant pack.
enum Uid : int64_t { kX = 1, kW, kY, kBias, kSum, kBiased };

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

template <typename T>
absl::Status Set(const CudnnDescriptor& descriptor,
                 cudnnBackendAttributeName_t name,
                 cudnnBackendAttributeType_t type, std::span<const T> values) {
  return BackendStatus(
      cudnnBackendSetAttribute(descriptor.get(), name, type,
                               static_cast<int64_t>(values.size()),
                               values.data()),
      absl::StrCat("setting attribute ", static_cast<int>(name)));
}

absl::Status SetOne(const CudnnDescriptor& descriptor,
                    cudnnBackendAttributeName_t name,
                    cudnnBackendAttributeType_t type, const auto& value) {
  return Set(descriptor, name, type, std::span(&value, 1));
}

absl::Status SetDescriptor(const CudnnDescriptor& descriptor,
                           cudnnBackendAttributeName_t name,
                           cudnnBackendDescriptor_t value) {
  return SetOne(descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value);
}

absl::StatusOr<CudnnDescriptor> Make(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(BackendStatus(
      cudnnBackendCreateDescriptor(type, &descriptor),
      absl::StrCat("creating descriptor ", static_cast<int>(type))));
  return CudnnDescriptor(descriptor);
}

absl::Status Finalize(const CudnnDescriptor& descriptor, const char* what) {
  return BackendStatus(cudnnBackendFinalize(descriptor.get()), what);
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

using Dims = std::array<int64_t, 4>;  // n, c, h, w

Dims StridesOf(const Dims& dims, Layout layout) {
  const auto& [n, c, h, w] = dims;
  return layout == Layout::kNhwc ? Dims{h * w * c, 1, w * c, c}
                                 : Dims{c * h * w, h * w, w, 1};
}

// Builds the operation graph: one convolution, optionally followed by bias and
// ReLU.
class GraphBuilder {
 public:
  explicit GraphBuilder(const ConvolutionGraph& graph) : graph_(graph) {}

  // Returns all descriptors of the graph. The operation graph is the last one.
  absl::StatusOr<std::vector<CudnnDescriptor>> Build() {
    const ConvolutionGraph& g = graph_;
    const ConvolutionPass pass = g.pass;
    const DataType type = TypeOf(g.precision);
    const DataType written = g.written.value_or(type);
    const auto type_if = [&](ConvolutionPass writer) {
      return pass == writer ? written : type;
    };
    const bool last = !g.bias && !g.relu;
    const Dims out = {g.n, g.out_channels, g.out_h(), g.out_w()};
    LOCKSTEP_ASSIGN_OR_RETURN(const auto x,
                              Tensor(kX, {g.n, g.c, g.h, g.w},
                                     type_if(ConvolutionPass::kInputGradient)));
    LOCKSTEP_ASSIGN_OR_RETURN(
        const auto w, Tensor(kW, {g.out_channels, g.c, g.kernel, g.kernel},
                             type_if(ConvolutionPass::kWeightGradient)));
    const DataType y_type = type_if(ConvolutionPass::kForward);
    LOCKSTEP_ASSIGN_OR_RETURN(const auto y, Tensor(kY, out, y_type));
    auto sum = y;
    if (!last) {
      LOCKSTEP_ASSIGN_OR_RETURN(
          sum, Tensor(kSum, out, DataType::kFloat32, /*is_virtual=*/true));
    }
    LOCKSTEP_RETURN_IF_ERROR(Convolve(x, w, sum));
    if (g.bias) {
      LOCKSTEP_ASSIGN_OR_RETURN(const auto bias,
                                Tensor(kBias, {1, g.out_channels, 1, 1}, type));
      auto biased = y;
      if (g.relu) {
        LOCKSTEP_ASSIGN_OR_RETURN(
            biased,
            Tensor(kBiased, out, DataType::kFloat32, /*is_virtual=*/true));
      }
      LOCKSTEP_RETURN_IF_ERROR(
          Pointwise(CUDNN_POINTWISE_ADD, sum, bias, biased));
      sum = biased;
    }
    if (g.relu) {
      LOCKSTEP_RETURN_IF_ERROR(
          Pointwise(CUDNN_POINTWISE_RELU_FWD, sum, nullptr, y));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(CudnnDescriptor all,
                              Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
    LOCKSTEP_RETURN_IF_ERROR(
        Set<cudnnBackendDescriptor_t>(all, CUDNN_ATTR_OPERATIONGRAPH_OPS,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, ops_));
    LOCKSTEP_RETURN_IF_ERROR(Finalize(all, "the operation graph"));
    made_.push_back(std::move(all));
    return std::move(made_);
  }

 private:
  cudnnBackendDescriptor_t Keep(CudnnDescriptor made) {
    made_.push_back(std::move(made));
    return made_.back().get();
  }

  absl::StatusOr<cudnnBackendDescriptor_t> Tensor(int64_t uid, const Dims& dims,
                                                  DataType type,
                                                  bool is_virtual = false) {
    constexpr int64_t kAlignment = 16;
    LOCKSTEP_ASSIGN_OR_RETURN(const cudnnDataType_t element, CudnnTypeOf(type));
    LOCKSTEP_ASSIGN_OR_RETURN(CudnnDescriptor tensor,
                              Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR));
    const Dims strides = StridesOf(dims, graph_.layout);
    for (const absl::Status& status :
         {SetOne(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE,
                 element),
          Set<int64_t>(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64,
                       dims),
          Set<int64_t>(tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64,
                       strides),
          SetOne(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid),
          SetOne(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64,
                 kAlignment),
          SetOne(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN,
                 is_virtual)}) {
      LOCKSTEP_RETURN_IF_ERROR(status);
    }
    LOCKSTEP_RETURN_IF_ERROR(Finalize(tensor, "a tensor"));
    return Keep(std::move(tensor));
  }

  absl::Status Convolve(cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t w,
                        cudnnBackendDescriptor_t y) {
    constexpr int64_t kSpatialDims = 2;
    constexpr std::array<int64_t, 2> kDilations = {1, 1};
    const std::array<int64_t, 2> strides = {graph_.stride, graph_.stride};
    const std::array<int64_t, 2> pads = {graph_.padding, graph_.padding};
    LOCKSTEP_ASSIGN_OR_RETURN(CudnnDescriptor how,
                              Make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR));
    const auto sizes = [&](cudnnBackendAttributeName_t name,
                           const std::array<int64_t, 2>& values) {
      return Set<int64_t>(how, name, CUDNN_TYPE_INT64, values);
    };
    for (const absl::Status& status :
         {SetOne(how, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE,
                 CUDNN_DATA_FLOAT),
          SetOne(how, CUDNN_ATTR_CONVOLUTION_CONV_MODE,
                 CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION),
          SetOne(how, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64,
                 kSpatialDims),
          sizes(CUDNN_ATTR_CONVOLUTION_DILATIONS, kDilations),
          sizes(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, strides),
          sizes(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, pads),
          sizes(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, pads)}) {
      LOCKSTEP_RETURN_IF_ERROR(status);
    }
    LOCKSTEP_RETURN_IF_ERROR(Finalize(how, "a convolution"));
    return AddOperation(Keep(std::move(how)), x, w, y);
  }

  absl::Status AddOperation(cudnnBackendDescriptor_t how,
                            cudnnBackendDescriptor_t x,
                            cudnnBackendDescriptor_t w,
                            cudnnBackendDescriptor_t y) {
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
    const Names& names = kNames[static_cast<size_t>(graph_.pass)];
    constexpr float kOne = 1, kZero = 0;
    LOCKSTEP_ASSIGN_OR_RETURN(CudnnDescriptor op, Make(names.kind));
    for (const absl::Status& status :
         {SetDescriptor(op, names.how, how), SetDescriptor(op, names.x, x),
          SetDescriptor(op, names.w, w), SetDescriptor(op, names.y, y),
          SetOne(op, names.alpha, CUDNN_TYPE_FLOAT, kOne),
          SetOne(op, names.beta, CUDNN_TYPE_FLOAT, kZero)}) {
      LOCKSTEP_RETURN_IF_ERROR(status);
    }
    LOCKSTEP_RETURN_IF_ERROR(Finalize(op, "the convolution"));
    ops_.push_back(Keep(std::move(op)));
    return absl::OkStatus();
  }

  // Adds an operation: y = x + b, or y = mode(x) if b is null.
  absl::Status Pointwise(cudnnPointwiseMode_t mode, cudnnBackendDescriptor_t x,
                         cudnnBackendDescriptor_t b,
                         cudnnBackendDescriptor_t y) {
    LOCKSTEP_ASSIGN_OR_RETURN(CudnnDescriptor how,
                              Make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
    LOCKSTEP_RETURN_IF_ERROR(SetOne(how, CUDNN_ATTR_POINTWISE_MODE,
                                    CUDNN_TYPE_POINTWISE_MODE, mode));
    LOCKSTEP_RETURN_IF_ERROR(SetOne(how, CUDNN_ATTR_POINTWISE_MATH_PREC,
                                    CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT));
    LOCKSTEP_RETURN_IF_ERROR(Finalize(how, "a pointwise operation"));
    LOCKSTEP_ASSIGN_OR_RETURN(
        CudnnDescriptor op, Make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR));
    LOCKSTEP_RETURN_IF_ERROR(
        SetDescriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                      Keep(std::move(how))));
    LOCKSTEP_RETURN_IF_ERROR(
        SetDescriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x));
    if (b != nullptr) {
      LOCKSTEP_RETURN_IF_ERROR(
          SetDescriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b));
    }
    LOCKSTEP_RETURN_IF_ERROR(
        SetDescriptor(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y));
    LOCKSTEP_RETURN_IF_ERROR(Finalize(op, "a pointwise operation"));
    ops_.push_back(Keep(std::move(op)));
    return absl::OkStatus();
  }

  const ConvolutionGraph& graph_;
  std::vector<CudnnDescriptor> made_;
  std::vector<cudnnBackendDescriptor_t> ops_;
};

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
  LOCKSTEP_ASSIGN_OR_RETURN(const CudnnDescriptor heuristics,
                            Make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
  for (const absl::Status& status :
       {SetDescriptor(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph),
        SetOne(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE,
               mode),
        SetDescriptor(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                      device.descriptor())}) {
    LOCKSTEP_RETURN_IF_ERROR(status);
  }
  LOCKSTEP_RETURN_IF_ERROR(Finalize(heuristics, "the heuristics"));
  return GetDescriptors(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                        CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kMost);
}

absl::StatusOr<CudnnDescriptor> BuildPlan(const CudnnDevice& device,
                                          cudnnBackendDescriptor_t config) {
  LOCKSTEP_ASSIGN_OR_RETURN(CudnnDescriptor plan,
                            Make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
  LOCKSTEP_RETURN_IF_ERROR(
      SetDescriptor(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
  LOCKSTEP_RETURN_IF_ERROR(SetDescriptor(
      plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device.descriptor()));
  LOCKSTEP_RETURN_IF_ERROR(Finalize(plan, "an execution plan"));
  return plan;
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

absl::StatusOr<CudnnDevice> CudnnDevice::OfHandle(cudnnHandle_t handle) {
  LOCKSTEP_ASSIGN_OR_RETURN(CudnnDescriptor device,
                            Make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
  LOCKSTEP_RETURN_IF_ERROR(
      SetOne(device, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, handle));
  LOCKSTEP_RETURN_IF_ERROR(Finalize(device, "asking for the card"));
  return CudnnDevice(std::move(device));
}

absl::StatusOr<CudnnDevice> CudnnDevice::OfDescription(absl::string_view json) {
  LOCKSTEP_ASSIGN_OR_RETURN(CudnnDescriptor device,
                            Make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
  absl::Status status = Set<char>(
      device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, json);
  if (status.ok()) status = Finalize(device, "a card's description");
  if (!status.ok()) return absl::InvalidArgumentError(status.message());
  return CudnnDevice(std::move(device));
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

absl::StatusOr<ConvolutionPlan> ConvolutionPlan::Create(
    const CudnnDevice& device, const ConvolutionGraph& graph) {
  ConvolutionPlan made;
  made.graph_ = Describe(graph);
  made.bias_ = graph.bias;
  const auto named = [&made](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat(made.graph_, ": ", status.message()));
  };
  if (const absl::Status status = CheckGraph(graph); !status.ok()) {
    return named(status);
  }
  absl::StatusOr<std::vector<CudnnDescriptor>> parts =
      GraphBuilder(graph).Build();
  if (!parts.ok()) return named(parts.status());
  made.parts_ = *std::move(parts);
  absl::Status last = absl::UnimplementedError("cuDNN proposed none");
  // The fallback mode's configurations are slower, but exist where mode A has
  // none.
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    absl::StatusOr<std::vector<CudnnDescriptor>> configs =
        ProposeConfigurations(device, made.parts_.back().get(), mode);
    if (!configs.ok()) {
      last = configs.status();
      continue;
    }
    for (CudnnDescriptor& config : *configs) {
      absl::StatusOr<EngineFacts> facts = ReadEngineFacts(config.get());
      if (!facts.ok()) return named(facts.status());
      ++made.rejected_count_;
      if (facts->unwanted ||
          (facts->rounds_inputs &&
           graph.precision == ConvolutionPrecision::kFloat32)) {
        last = absl::UnimplementedError(
            absl::StrCat(facts->name, " is excluded: ", facts->notes));
        continue;
      }
      absl::StatusOr<CudnnDescriptor> plan = BuildPlan(device, config.get());
      if (!plan.ok()) {
        last = plan.status();
        continue;
      }
      --made.rejected_count_;
      const absl::StatusOr<std::vector<int64_t>> workspace =
          Get<int64_t>(plan->get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                       CUDNN_TYPE_INT64, 1);
      if (!workspace.ok()) return named(workspace.status());
      made.workspace_bytes_ = workspace->at(0);
      made.engine_ = std::move(facts->name);
      made.notes_ = std::move(facts->notes);
      made.plan_ = *std::move(plan);
      made.parts_.push_back(std::move(config));
      return made;
    }
  }
  return absl::UnimplementedError(
      absl::StrCat(made.graph_, ": no plan among ", made.rejected_count_,
                   " configurations; the last: ", last.message()));
}

absl::Status ConvolutionPlan::Execute(cudnnHandle_t handle,
                                      const ConvolutionOperands& operands,
                                      void* workspace) const {
  LOCKSTEP_ASSIGN_OR_RETURN(const CudnnDescriptor pack,
                            Make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
  constexpr std::array<int64_t, 4> kUids = {kX, kW, kY, kBias};
  const std::array<void*, 4> pointers = {operands.x, operands.w, operands.y,
                                         operands.bias};
  const size_t count = bias_ ? 4 : 3;
  LOCKSTEP_RETURN_IF_ERROR(
      Set<int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                   std::span(kUids).first(count)));
  LOCKSTEP_RETURN_IF_ERROR(Set<void*>(
      pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
      std::span<void* const>(pointers).first(count)));
  LOCKSTEP_RETURN_IF_ERROR(SetOne(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                  CUDNN_TYPE_VOID_PTR, workspace));
  LOCKSTEP_RETURN_IF_ERROR(Finalize(pack, "operands"));
  return BackendStatus(cudnnBackendExecute(handle, plan_.get(), pack.get()),
                       graph_);
}

}  // namespace lockstep
