// Mutants of attention, masks, shortcuts and strides.
#include "conformance/network/architecture_mutants.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "conformance/mutant.h"
#include "conformance/network/network_mutants.h"
#include "conformance/network/network_run.h"
#include "conformance/training/mutants.h"
#include "conformance/training/run.h"
#include "models/cpu/cpu_model.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/reference/network_reference.h"

namespace lockstep::conformance {
namespace {

// Returns the strides of the convolutions, by operation. In each bottleneck the
// strides of the first two convolutions are exchanged. A bottleneck's second
// convolution is one of 3x3 behind a batch norm behind a convolution of 1x1.
std::map<int, int64_t> ExchangedStrides(const Network& network) {
  const std::vector<Network::Operation>& operations = network.operations();
  // The operation whose result is the first input of operation `at`.
  const auto before = [&](int at) { return operations[at].inputs[0] - 1; };
  const auto convolution = [&](int at) {
    return at < 0 ? nullptr : std::get_if<ConvolutionOp>(&operations[at].kind);
  };
  std::map<int, int64_t> strides;
  for (int at = 0; at < static_cast<int>(operations.size()); ++at) {
    const ConvolutionOp* const second = convolution(at);
    if (second == nullptr) continue;
    strides[at] = second->stride;
    const int norm = before(at);
    if (second->kernel != 3 || norm < 0 ||
        !std::holds_alternative<BatchNormOp>(operations[norm].kind)) {
      continue;
    }
    const ConvolutionOp* const first = convolution(before(norm));
    if (first == nullptr || first->kernel != 1) continue;
    strides[at] = first->stride;
    strides[before(norm)] = second->stride;
  }
  return strides;
}

// Declares the tensors of one network in another, in the same order.
void DeclareTensors(const Network& from, Network& to) {
  for (const TensorDescription& parameter : from.parameters()) {
    to.Declare(parameter.name, parameter.shape);
  }
  for (const TensorDescription& buffer : from.buffers()) {
    if (buffer.counter) continue;
    to.DeclareBatchNorm(buffer.name.substr(0, buffer.name.rfind('.')),
                        buffer.shape[0]);
  }
}

// Appends a ResNet's operation to the network `to`, which already has the
// inputs. A convolution gets `stride`.
Value AppendLike(const Network::Operation& operation, int64_t stride,
                 std::span<const Value> inputs, Network& to) {
  const std::string& name = operation.name;
  const int64_t out = operation.output.c;
  if (const auto* op = std::get_if<ConvolutionOp>(&operation.kind)) {
    return to.Convolution(name, inputs[0],
                          {.out = out,
                           .kernel = op->kernel,
                           .stride = stride,
                           .padding = op->padding,
                           .bias = op->bias != kNoTensor,
                           .relu = op->relu});
  }
  if (const auto* op = std::get_if<BatchNormOp>(&operation.kind)) {
    return inputs.size() == 1 ? to.BatchNorm(name, inputs[0], op->relu)
                              : to.BatchNormAddRelu(name, inputs[0], inputs[1]);
  }
  if (const auto* op = std::get_if<PoolOp>(&operation.kind)) {
    return to.Pool(name, inputs[0], *op);
  }
  if (std::holds_alternative<GlobalAveragePoolOp>(operation.kind)) {
    return to.GlobalAveragePool(name, inputs[0]);
  }
  return to.Linear(name, inputs[0], {.out = out});
}

// The first block's attention of the vision transformer.
constexpr char kAttention[] = "blocks.0.attn";
constexpr int64_t kHeads = 3;
// The addition of the second block's input to its attention's output.
constexpr char kShortcutSum[] = "blocks.1.add1";

// Returns a parameter's part of values or gradients.
std::span<float> PartOf(Model& model, std::span<float> all,
                        const std::string& name) {
  for (const ParameterSpec& spec : model.parameters().specs()) {
    if (spec.name == name) return spec.Part(all);
  }
  return {};
}

// Zeroes the projection's weights of one head, so that the head's output is
// lost.
absl::StatusOr<Metrics> LeaveHeadOut(const StepCall& call) {
  const std::string name = absl::StrCat(kAttention, ".proj.weight");
  Parameters& parameters = call.model.parameters();
  const std::span<float> weight = PartOf(call.model, parameters.values(), name);
  const std::vector<float> before(weight.begin(), weight.end());
  const auto width = static_cast<size_t>(
      std::lround(std::sqrt(static_cast<double>(weight.size()))));
  const auto is_last_heads = [width](size_t i) {
    return i % width >= width / kHeads * (kHeads - 1);
  };
  for (size_t i = 0; i < weight.size(); ++i) {
    if (is_last_heads(i)) weight[i] = 0;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, call.RunWithoutReady());
  std::ranges::copy(before, weight.begin());
  const std::span<float> gradient =
      PartOf(call.model, parameters.gradients(), name);
  for (size_t i = 0; i < gradient.size(); ++i) {
    if (is_last_heads(i)) gradient[i] = 0;
  }
  call.MarkAllReady();
  return metrics;
}

// Multiplies the queries by sqrt(head size), which undoes the scale.
absl::StatusOr<Metrics> LeaveScaleOut(const StepCall& call) {
  Parameters& parameters = call.model.parameters();
  const std::vector<float> before(parameters.values().begin(),
                                  parameters.values().end());
  const auto scale = [&](std::span<float> all) {
    for (const ParameterSpec& spec : parameters.specs()) {
      if (spec.name.find(".qkv.") == std::string::npos) continue;
      const double head_size = static_cast<double>(spec.shape[0]) / 3 / kHeads;
      for (float& v : spec.Part(all).first(spec.size / 3)) {
        v *= static_cast<float>(std::sqrt(head_size));
      }
    }
  };
  scale(parameters.values());
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, call.RunWithoutReady());
  std::ranges::copy(before, parameters.values().begin());
  scale(parameters.gradients());
  call.MarkAllReady();
  return metrics;
}

absl::StatusOr<Metrics> KeepPositions(const StepCall& call) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, call.RunWithoutReady());
  std::ranges::fill(
      PartOf(call.model, call.model.parameters().gradients(), "pos_embed"),
      0.0f);
  call.MarkAllReady();
  return metrics;
}

// Replaces the rank's gradients by the reference's gradients of its own batch.
// The gradient through one shortcut of the vision transformer is left out.
absl::StatusOr<Metrics> AddShortcutOnce(const StepCall& call) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Metrics metrics, call.RunWithoutReady());
  Parameters& parameters = call.model.parameters();
  if (!call.batch.labels.empty()) {
    const Network& network = TestedVit().network();
    const std::vector<double> values(parameters.values().begin(),
                                     parameters.values().end());
    const NetworkReference<double> pass(
        network, values, /*running=*/{}, call.batch, /*training=*/true,
        MaskOf(static_cast<int>(call.batch.step)));
    const auto sum = std::ranges::find(network.operations(), kShortcutSum,
                                       &Network::Operation::name);
    const Consumer shortcut = {
        static_cast<int>(sum - network.operations().begin()), /*input=*/0};
    const std::vector<double> scales(call.batch.labels.size(), call.scale);
    std::ranges::transform(pass.Gradient(scales, &shortcut),
                           parameters.gradients().begin(),
                           [](double v) { return static_cast<float>(v); });
  }
  call.MarkAllReady();
  return metrics;
}

// Computes its steps with another network of the same tensors. This network has
// its own copies of parameters and buffers.
class OtherNetwork : public SteppedModel {
 public:
  OtherNetwork(Model& inner, std::unique_ptr<Model> other)
      : SteppedModel(inner,
                     [this](const StepCall& call) { return Step(call); }),
        other_(std::move(other)) {}

  int ConvertSyncBatchNorm(Communicator& group) override {
    return other_->ConvertSyncBatchNorm(group);
  }

 private:
  static void CopyBuffers(Buffers& from, Buffers& to) {
    std::ranges::copy(from.floats(), to.floats().begin());
    std::ranges::copy(from.counters(), to.counters().begin());
  }

  absl::StatusOr<Metrics> Step(const StepCall& call) {
    Parameters& parameters = call.model.parameters();
    std::ranges::copy(parameters.values(),
                      other_->parameters().values().begin());
    CopyBuffers(call.model.buffers(), other_->buffers());
    LOCKSTEP_ASSIGN_OR_RETURN(
        const Metrics metrics,
        other_->ForwardBackward(call.batch, call.scale, [](int) {}));
    std::ranges::copy(other_->parameters().gradients(),
                      parameters.gradients().begin());
    CopyBuffers(other_->buffers(), call.model.buffers());
    call.MarkAllReady();
    return metrics;
  }

  const std::unique_ptr<Model> other_;
};

Mutation StrideInFirst() {
  return {.model = [](Model& inner, const RankContext&) {
    const auto network =
        WithStrideInFirstConvolution(TestedResNet50().network());
    return std::make_unique<OtherNetwork>(inner, *CreateCpuReplica(*network));
  }};
}

absl::StatusOr<Metrics> NumberSamplesByRank(const StepCall& call) {
  Batch batch = call.batch;
  batch.samples = {};
  return call.model.ForwardBackward(batch, call.scale, call.ready);
}

}  // namespace

std::unique_ptr<const Network> WithStrideInFirstConvolution(
    const Network& network) {
  const std::map<int, int64_t> strides = ExchangedStrides(network);
  bool is_same = true;
  for (const auto& [at, stride] : strides) {
    const auto& kind = network.operations()[at].kind;
    is_same = is_same && std::get<ConvolutionOp>(kind).stride == stride;
  }
  if (is_same) return nullptr;
  auto other = std::make_unique<Network>(network.name(), network.input_shape());
  DeclareTensors(network, *other);
  std::vector<Value> values = {other->input()};
  for (const Network::Operation& operation : network.operations()) {
    std::vector<Value> inputs;
    for (const int value : operation.inputs) inputs.push_back(values[value]);
    const auto stride = strides.find(static_cast<int>(values.size()) - 1);
    values.push_back(AppendLike(operation,
                                stride == strides.end() ? 1 : stride->second,
                                inputs, *other));
  }
  return other;
}

std::vector<Mutant> ArchitectureMutants() {
  return {
      Planted(
          {"HeadLeftOut", "an attention lacks its last head", "Gradients, Loss",
           "head 2 of blocks.0.attn has no gradient: left out?"},
          {4, 4}, Stepping(LeaveHeadOut), TestedVit()),
      Planted({"ScoresNotScaled",
               "attention's scores are not divided by the root of a head's "
               "size",
               "Gradients, Loss", "not divided by the root of a head's size?"},
              {4, 4}, Stepping(LeaveScaleOut), TestedVit()),
      Planted({"PositionsNotTrained", "the position embedding has no gradient",
               "Gradients", "it is zero: not trained?"},
              {4, 4}, Stepping(KeepPositions), TestedVit()),
      Planted({"LayerNormNotReduced",
               "each rank keeps its own gradients of a layer norm",
               "RanksAgree, Gradients",
               "those of blocks.1.norm1 differ, and no others: not reduced?"},
              {4, 4},
              LeaveGradients(TestedVit(),
                             [](const ParameterSpec& spec) {
                               return spec.name.find("blocks.1.norm1.") == 0;
                             }),
              TestedVit()),
      Planted({"ShortcutAddedOnce",
               "backward forgets the gradient that comes over a shortcut",
               "Gradients", "over the shortcut into blocks.1.add1 is missing"},
              {4, 4}, Stepping(AddShortcutOnce), TestedVit()),
      Planted({"StrideInFirstConvolution",
               "a bottleneck's stride is in its first convolution",
               "Gradients, Buffers, Loss",
               "bottlenecks with their stride in the first convolution"},
              {4, 4}, StrideInFirst(), TestedResNet50()),
      Planted({"MasksByRank", "random masks count a rank's samples from 0 on",
               "Gradients, Loss", "keyed by the rank's own numbers?"},
              {4, 4}, Stepping(NumberSamplesByRank), TestedVit()),
  };
}

}  // namespace lockstep::conformance
