#include "benchmarks/step/turn.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/torch_process.h"
#include "benchmarks/step/settings.h"
#include "models/cpu/algorithm.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/reference/winograd.h"
#include "nlohmann/json.hpp"
#include "syncbn/batch_norm.h"

namespace lockstep::benchmarks {

// Files with the network and its tensors.
namespace {

using Json = nlohmann::json;

// Writes an operation as JSON. A member that is a tensor becomes the tensor's
// name, or null if the operation has no such tensor.
class OperationWriter {
 public:
  explicit OperationWriter(const Network& network) : network_(network) {}

  Json Write(const Network::Operation& operation) {
    json_ = {{"name", operation.name}, {"inputs", operation.inputs}};
    std::visit([this](const auto& op) { Add(op); }, operation.kind);
    return json_;
  }

 private:
  void Kind(const char* kind) { json_["kind"] = kind; }
  void Parameter(const char* key, int index) {
    json_[key] =
        index == kNoTensor ? Json() : Json(network_.parameters()[index].name);
  }
  void Buffer(const char* key, int index) {
    json_[key] = network_.buffers()[index].name;
  }
  void WeightAndBias(int weight, int bias) {
    Parameter("weight", weight);
    Parameter("bias", bias);
  }

  void Add(const ConvolutionOp& op) {
    Kind("convolution");
    WeightAndBias(op.weight, op.bias);
    json_["stride"] = op.stride;
    json_["padding"] = op.padding;
    json_["relu"] = op.relu;
  }
  void Add(const LinearOp& op) {
    Kind("linear");
    WeightAndBias(op.weight, op.bias);
    json_["inputs_first"] = op.inputs_first;
    json_["per_position"] = op.per_position;
    json_["relu"] = op.relu;
  }
  void Add(const BatchNormOp& op) {
    Kind("batch_norm");
    WeightAndBias(op.weight, op.bias);
    Buffer("mean", op.running_mean);
    Buffer("variance", op.running_variance);
    Buffer("batches", op.batches);
    json_["epsilon"] = op.epsilon;
    json_["relu"] = op.relu;
  }
  void Add(const PoolOp& op) {
    Kind("pool");
    json_["maximum"] = op.maximum;
    json_["kernel"] = op.kernel;
    json_["stride"] = op.stride;
    json_["padding"] = op.padding;
  }
  void Add(const GlobalAveragePoolOp&) { Kind("global_average_pool"); }
  void Add(const LayerNormOp& op) {
    Kind("layer_norm");
    WeightAndBias(op.weight, op.bias);
    json_["epsilon"] = op.epsilon;
  }
  void Add(const GeluOp&) { Kind("gelu"); }
  void Add(const AttentionOp& op) {
    Kind("attention");
    json_["heads"] = op.heads;
  }
  void Add(const EmbedOp& op) {
    Kind("embed");
    Parameter("class_token", op.class_token);
    Parameter("position", op.position);
  }
  void Add(const FirstPositionOp&) { Kind("first_position"); }
  void Add(const DropoutOp&) { Kind("dropout"); }
  void Add(const AddOp&) { Kind("add"); }

  const Network& network_;
  Json json_;
};

std::vector<std::string> NamesOf(const std::vector<TensorDescription>& all) {
  std::vector<std::string> names;
  for (const TensorDescription& one : all) names.push_back(one.name);
  return names;
}

}  // namespace

std::string NetworkText(const Network& network) {
  Json operations = Json::array();
  for (const Network::Operation& operation : network.operations()) {
    operations.push_back(OperationWriter(network).Write(operation));
  }
  return Json{{"operations", std::move(operations)},
              {"parameters", NamesOf(network.parameters())},
              {"buffers", NamesOf(network.buffers())}}
      .dump();
}

absl::Status WriteStepFiles(const Network& network, const StepCase& one,
                            uint64_t seed, const std::string& folder) {
  const Shape& image = network.input_shape();
  std::vector<float> images(static_cast<size_t>(one.batch * image.size()));
  const uint64_t key = UniformKey(seed, /*number=*/0);
  for (size_t i = 0; i < images.size(); ++i) {
    images[i] = static_cast<float>(Uniform(key, static_cast<int64_t>(i)));
  }
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < one.batch; ++i) {
    labels.push_back(static_cast<int32_t>(i * 7 % network.classes()));
  }
  Safetensors file = {
      .metadata = {{"network", NetworkText(network)},
                   {"spec", one.spec},
                   {"classes", absl::StrCat(network.classes())}},
      .tensors = ValueTensors(CreateParameters(network, seed))};
  file.tensors.merge(BufferTensors(CreateBuffers(network)));
  file.tensors["input.images"] =
      NamedTensor::Of<float>({one.batch, image.h, image.w, image.c}, images);
  file.tensors["input.labels"] = NamedTensor::Of<int32_t>({one.batch}, labels);
  return WriteSafetensors(folder + kCaseFile, file);
}

absl::Status ClearGradients(const Network& network, const std::string& folder) {
  Parameters parameters = CreateParameters(network);
  std::ranges::fill(parameters.gradients(),
                    std::numeric_limits<float>::quiet_NaN());
  return WriteSafetensors(
      folder + kGradientsFile,
      {.metadata = {}, .tensors = GradientTensors(parameters)});
}

// The protocol's lines.
namespace {

// Returns kFailedPrecondition with the reason if the answer is "cannot".
absl::Status ErrorIfCannot(absl::string_view answer) {
  const std::pair<absl::string_view, absl::string_view> words =
      absl::StrSplit(answer, absl::MaxSplits(' ', 1));
  return words.first == "cannot" ? absl::FailedPreconditionError(words.second)
                                 : absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<double>> ParseNumbers(absl::string_view answer,
                                                 absl::string_view word,
                                                 size_t fewest) {
  LOCKSTEP_RETURN_IF_ERROR(ErrorIfCannot(answer));
  const std::vector<absl::string_view> words = absl::StrSplit(answer, ' ');
  std::vector<double> numbers(words.size() - 1);
  bool right = words[0] == word && numbers.size() >= fewest;
  for (size_t i = 0; i < numbers.size(); ++i) {
    right = right && absl::SimpleAtod(words[i + 1], &numbers[i]) &&
            std::isfinite(numbers[i]);
  }
  if (right) return numbers;
  return NotUnderstood(answer);
}

std::string ChosenText(const ChosenAlgorithms& chosen) {
  std::string text = absl::StrCat("chosen ", chosen.layout);
  for (const std::string& one : chosen.operations) {
    absl::StrAppend(&text, ";", one);
  }
  return text;
}

absl::StatusOr<ChosenAlgorithms> ParseChosen(absl::string_view answer,
                                             size_t operations) {
  LOCKSTEP_RETURN_IF_ERROR(ErrorIfCannot(answer));
  absl::string_view text = answer;
  if (!absl::ConsumePrefix(&text, "chosen ")) return NotUnderstood(answer);
  std::vector<std::string> words = absl::StrSplit(text, ';');
  if (words[0].empty() || words.size() != operations + 1) {
    return NotUnderstood(answer);
  }
  ChosenAlgorithms chosen = {.layout = std::move(words[0])};
  words.erase(words.begin());
  chosen.operations = std::move(words);
  return chosen;
}

void ServeStepLines(
    const std::string& version,
    const std::function<absl::StatusOr<std::string>(absl::string_view line)>&
        answer) {
  std::cout << "lockstep: ready " << version << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const absl::StatusOr<std::string> said = answer(line);
    if (said.ok()) {
      std::cout << "lockstep: " << *said << std::endl;
    } else {
      std::cout << "lockstep: cannot " << said.status().message() << std::endl;
    }
  }
}

// The comparison of first steps.
namespace {

double Norm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return std::sqrt(sum);
}

// Returns whether a small change of an input can change a gradient a lot.
bool HasEdge(const OperationKind& kind) {
  return std::visit(
      [](const auto& op) {
        if constexpr (requires { op.relu; }) return op.relu;
        if constexpr (requires { op.maximum; }) return op.maximum;
        return false;
      },
      kind);
}

// Returns whether one of our subjects computes the operation by Winograd.
bool UsesWinograd(const Network& network, const StepCase& one,
                  const Network::Operation& operation) {
  const auto* const op = std::get_if<ConvolutionOp>(&operation.kind);
  if (op == nullptr) return false;
  Shape x = network.ShapeOf(operation.inputs[0]), y = operation.output;
  x.n = y.n = one.batch;
  return std::ranges::any_of(
      one.convolutions, [&](ConvolutionAlgorithm algorithm) {
        return LayoutOf(network, one.type(), algorithm) == Layout::kNchw16c &&
               IsWinograd(algorithm, *op, x, y);
      });
}

// Returns, by parameter, the norm that divides the difference of its gradients.
std::vector<double> ComparisonNorms(const Network& network,
                                    const FirstStep& step, double error) {
  std::vector<double> norms;
  double whole = 0;
  for (const std::vector<float>& gradient : step.gradients) {
    norms.push_back(Norm(gradient));
    whole = std::hypot(whole, norms.back());
  }
  for (double& norm : norms) norm = std::max(norm, error * whole);
  for (const Network::Operation& operation : network.operations()) {
    if (!std::holds_alternative<BatchNormOp>(operation.kind)) continue;
    const int before = operation.inputs[0] - 1;
    const auto* const convolution =
        before < 0
            ? nullptr
            : std::get_if<ConvolutionOp>(&network.operations()[before].kind);
    if (convolution == nullptr || convolution->bias == kNoTensor) continue;
    double& norm = norms[convolution->bias];
    norm = std::max(norm, norms[convolution->weight]);
  }
  return norms;
}

// Returns the unit of rounding of a layer's inputs and results. For float32 the
// sums have the larger error, and it returns 0.
double RoundingOf(ConvolutionPrecision precision) {
  switch (precision) {
    case ConvolutionPrecision::kTf32:
    case ConvolutionPrecision::kFloat16:
      return 0x1p-11;
    case ConvolutionPrecision::kBFloat16:
      return 0x1p-9;
    case ConvolutionPrecision::kFloat32:
      return 0;
  }
  return 0;
}

}  // namespace

absl::StatusOr<FirstStep> ReadFirstStep(const Network& network, double loss,
                                        const std::string& folder) {
  const std::string path = folder + kGradientsFile;
  LOCKSTEP_ASSIGN_OR_RETURN(const Safetensors file, ReadSafetensors(path));
  FirstStep step = {.loss = loss};
  for (const TensorDescription& parameter : network.parameters()) {
    const auto found = file.tensors.find(parameter.name);
    if (found == file.tensors.end()) {
      return absl::DataLossError(
          absl::StrCat(path, ": no gradient of ", parameter.name));
    }
    step.gradients.push_back(found->second.Values<float>());
  }
  return step;
}

StepTolerance ToleranceOf(const Network& network, const StepCase& one) {
  double longest = 1;
  int layers = 0, edges = 0;
  for (size_t i = 0; i < network.operations().size(); ++i) {
    const Network::Operation& operation = network.operations()[i];
    const Shape& out = operation.output;
    const int64_t flops = FlopsOf(network, static_cast<int>(i));
    edges += HasEdge(operation.kind) ? 1 : 0;
    if (flops == 0) continue;
    ++layers;
    const int64_t products = flops / 2 / out.size();
    const int64_t positions = one.batch * out.h * out.w;
    longest = std::max({longest, static_cast<double>(products),
                        static_cast<double>(positions)});
    if (!UsesWinograd(network, one, operation)) continue;
    // A Winograd sum has a term for each channel, or for each tile of sixteen
    // positions.
    const double error = reference::WinogradError(
        std::max({products / 9, out.c, positions / 16}));
    longest = std::max(longest, error * error);
  }
  const double error =
      4 * std::sqrt(2.0 * layers) *
      std::max(RoundingOf(one.precision), 0x1p-24 * std::sqrt(longest));
  // Two unrelated gradients of one norm differ by sqrt(2) of it.
  const double flipped = std::sqrt(edges * error);
  return {.loss = error,
          .gradient = edges == 0      ? error
                      : flipped < 0.5 ? flipped
                                      : 1.2};
}

absl::StatusOr<double> CompareFirstSteps(const Network& network,
                                         const FirstStep& ours,
                                         const FirstStep& theirs,
                                         const StepTolerance& tolerance) {
  const double apart = std::abs(ours.loss - theirs.loss);
  if (!(apart <= tolerance.loss * std::max(1.0, std::abs(ours.loss)))) {
    return absl::DataLossError(
        absl::StrFormat("the loss of the first step is %.9g, ours %.9g",
                        theirs.loss, ours.loss));
  }
  const std::vector<double> norms =
      ComparisonNorms(network, ours, tolerance.loss);
  double largest = 0;
  for (size_t i = 0; i < ours.gradients.size(); ++i) {
    std::vector<float> difference = ours.gradients[i];
    for (size_t j = 0; j < difference.size(); ++j) {
      difference[j] -= theirs.gradients[i][j];
    }
    const double norm = norms[i];
    const double share = norm > 0 ? Norm(difference) / norm : Norm(difference);
    if (!(share <= tolerance.gradient)) {
      return absl::DataLossError(absl::StrFormat(
          "the gradient of %s differs by %.2g of its norm; %.2g is allowed",
          network.parameters()[i].name, share, tolerance.gradient));
    }
    largest = std::max(largest, share);
  }
  return largest;
}

}  // namespace lockstep::benchmarks
