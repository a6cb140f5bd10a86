#include "models/networks/network.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "models/model.h"
#include "models/networks/torch_generator.h"

namespace lockstep {
namespace {

std::string Text(const Shape& shape) {
  return absl::StrCat("[", shape.c, ", ", shape.h, ", ", shape.w, "]");
}

// Returns the number of windows over `size` elements. The window must fit.
int64_t Extent(int64_t size, int64_t kernel, int64_t stride, int64_t padding) {
  return (size + 2 * padding - kernel) / stride + 1;
}

Shape Windows(const Shape& x, int64_t channels, int64_t kernel, int64_t stride,
              int64_t padding) {
  return {.n = 1,
          .c = channels,
          .h = Extent(x.h, kernel, stride, padding),
          .w = Extent(x.w, kernel, stride, padding)};
}

void RunDraw(const Draw& draw, TorchGenerator& generator,
             Parameters& parameters) {
  const std::span<float> values = parameters.value(draw.parameter);
  const auto scale = static_cast<float>(draw.scale);
  switch (draw.kind) {
    case Draw::Kind::kUniform:
      return generator.FillUniform(-scale, scale, values);
    case Draw::Kind::kNormal:
      generator.FillNormal(values);
      for (float& x : values) x *= scale;
      return;
    case Draw::Kind::kTruncatedNormal:
      return generator.FillTruncatedNormal(scale, values);
    case Draw::Kind::kConstant:
      for (float& x : values) x = scale;
      return;
  }
}

}  // namespace

Network::Network(std::string name, const Shape& input)
    : name_(std::move(name)), input_(input) {
  input_.n = 1;
  if (input.c < 1 || input.h < 1 || input.w < 1) {
    Fail("input", absl::StrCat("images of ", Text(input_), " are empty"));
  }
}

void Network::Fail(absl::string_view name, absl::string_view fault) {
  if (!status_.ok()) return;
  status_ =
      absl::InvalidArgumentError(absl::StrCat(name_, ": ", name, ": ", fault));
}

Value Network::Append(const std::string& name, OperationKind kind,
                      std::vector<Value> inputs, const Shape& output) {
  if (!status_.ok()) return {};
  std::vector<int> indices;
  for (const Value& value : inputs) indices.push_back(value.index);
  operations_.push_back({name, std::move(kind), std::move(indices), output});
  return {static_cast<int>(operations_.size()), output};
}

int Network::AddParameter(const std::string& name, std::vector<int64_t> shape,
                          float first_value) {
  const int declared = FindParameter(name);
  if (declared != kNoTensor) {
    if (parameters_[declared].shape != shape) {
      Fail(name, "was declared with another shape");
    }
    return declared;
  }
  parameters_.push_back(
      {.name = name, .shape = std::move(shape), .first_value = first_value});
  return static_cast<int>(parameters_.size()) - 1;
}

void Network::Declare(const std::string& name, std::vector<int64_t> shape) {
  AddParameter(name, std::move(shape));
}

void Network::DeclareBatchNorm(const std::string& name, int64_t channels) {
  if (status_.ok()) BatchNormTensors(name, channels);
}

int Network::AddBuffer(const std::string& name, std::vector<int64_t> shape,
                       bool counter, float first_value) {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    // A declared buffer keeps its position.
    if (buffers_[i].name == name) return static_cast<int>(i);
  }
  buffers_.push_back({.name = name,
                      .shape = std::move(shape),
                      .counter = counter,
                      .first_value = first_value});
  return static_cast<int>(buffers_.size()) - 1;
}

bool Network::WindowFits(const std::string& name, const Value& x,
                         int64_t kernel, int64_t stride, int64_t padding) {
  if (kernel < 1 || stride < 1 || padding < 0) {
    Fail(name, absl::StrCat("kernel ", kernel, ", stride ", stride,
                            ", padding ", padding, " are out of range"));
  } else if (x.shape.h + 2 * padding < kernel ||
             x.shape.w + 2 * padding < kernel) {
    Fail(name, absl::StrCat("a window of ", kernel, " with padding ", padding,
                            " does not fit an input of ", Text(x.shape)));
  }
  return status_.ok();
}

Value Network::Convolution(const std::string& name, const Value& x,
                           const ConvolutionOptions& options) {
  if (!WindowFits(name, x, options.kernel, options.stride, options.padding)) {
    return {};
  }
  ConvolutionOp op = {.kernel = options.kernel,
                      .stride = options.stride,
                      .padding = options.padding,
                      .relu = options.relu};
  op.weight = AddParameter(name + ".weight", {options.out, x.shape.c,
                                              options.kernel, options.kernel});
  if (options.bias) op.bias = AddParameter(name + ".bias", {options.out});
  return Append(name, op, {x},
                Windows(x.shape, options.out, options.kernel, options.stride,
                        options.padding));
}

Value Network::Linear(const std::string& name, const Value& x,
                      const LinearOptions& options) {
  if (!status_.ok()) return {};
  LinearOp op = {.inputs_first = options.inputs_first,
                 .per_position = options.per_position,
                 .relu = options.relu};
  const int64_t in = options.per_position ? x.shape.c : x.shape.size();
  op.weight = AddParameter(name + ".weight",
                           options.inputs_first
                               ? std::vector<int64_t>{in, options.out}
                               : std::vector<int64_t>{options.out, in});
  op.bias = AddParameter(name + ".bias", {options.out});
  Shape output = {.n = 1, .c = options.out};
  if (options.per_position) {
    output.h = x.shape.h;
    output.w = x.shape.w;
  }
  return Append(name, op, {x}, output);
}

BatchNormOp Network::BatchNormTensors(const std::string& name,
                                      int64_t channels) {
  BatchNormOp op;
  op.weight = AddParameter(name + ".weight", {channels}, /*first_value=*/1);
  op.bias = AddParameter(name + ".bias", {channels});
  op.running_mean = AddBuffer(name + ".running_mean", {channels}, false);
  op.running_variance =
      AddBuffer(name + ".running_var", {channels}, false, /*first_value=*/1);
  op.batches = AddBuffer(name + ".num_batches_tracked", {}, /*counter=*/true);
  return op;
}

Value Network::BatchNorm(const std::string& name, const Value& x, bool relu) {
  if (!status_.ok()) return {};
  BatchNormOp op = BatchNormTensors(name, x.shape.c);
  op.relu = relu;
  return Append(name, op, {x}, x.shape);
}

Value Network::BatchNormAddRelu(const std::string& name, const Value& x,
                                const Value& shortcut) {
  if (!status_.ok()) return {};
  if (x.shape != shortcut.shape) {
    Fail(name, absl::StrCat("cannot add a shortcut of ", Text(shortcut.shape),
                            " to ", Text(x.shape)));
    return {};
  }
  BatchNormOp op = BatchNormTensors(name, x.shape.c);
  op.relu = true;
  return Append(name, op, {x, shortcut}, x.shape);
}

Value Network::Pool(const std::string& name, const Value& x,
                    const PoolOp& options) {
  if (!WindowFits(name, x, options.kernel, options.stride, options.padding)) {
    return {};
  }
  return Append(name, options, {x},
                Windows(x.shape, x.shape.c, options.kernel, options.stride,
                        options.padding));
}

Value Network::GlobalAveragePool(const std::string& name, const Value& x) {
  return Append(name, GlobalAveragePoolOp{}, {x}, {.n = 1, .c = x.shape.c});
}

Value Network::LayerNorm(const std::string& name, const Value& x) {
  if (!status_.ok()) return {};
  LayerNormOp op;
  op.weight = AddParameter(name + ".weight", {x.shape.c}, /*first_value=*/1);
  op.bias = AddParameter(name + ".bias", {x.shape.c});
  return Append(name, op, {x}, x.shape);
}

Value Network::Gelu(const std::string& name, const Value& x) {
  return Append(name, GeluOp{}, {x}, x.shape);
}

Value Network::Attention(const std::string& name, const Value& qkv,
                         int64_t heads, double dropout) {
  if (!status_.ok()) return {};
  const int64_t width = qkv.shape.c / 3;
  if (heads < 1 || qkv.shape.c % 3 != 0 || width % heads != 0) {
    Fail(name, absl::StrCat(heads, " heads do not divide a width of ", width));
    return {};
  }
  Shape output = qkv.shape;
  output.c = width;
  return Append(
      name,
      AttentionOp{
          .heads = heads, .dropout = dropout, .layer = random_layers_++},
      {qkv}, output);
}

Value Network::Embed(const Value& patches, const std::string& class_token,
                     const std::string& position) {
  if (!status_.ok()) return {};
  const int64_t width = patches.shape.c;
  const int64_t length = patches.shape.h * patches.shape.w + 1;
  EmbedOp op;
  op.class_token = AddParameter(class_token, {1, 1, width});
  op.position = AddParameter(position, {1, length, width});
  return Append("embed", op, {patches}, {.n = 1, .c = width, .h = length});
}

Value Network::FirstPosition(const std::string& name, const Value& x) {
  return Append(name, FirstPositionOp{}, {x}, {.n = 1, .c = x.shape.c});
}

Value Network::Dropout(const std::string& name, const Value& x, double rate) {
  return Append(name, DropoutOp{.rate = rate, .layer = random_layers_++}, {x},
                x.shape);
}

Value Network::Add(const std::string& name, const Value& x, const Value& branch,
                   double drop_path) {
  if (!status_.ok()) return {};
  if (x.shape != branch.shape) {
    Fail(name, absl::StrCat("cannot add ", Text(branch.shape), " to ",
                            Text(x.shape)));
    return {};
  }
  return Append(name, AddOp{.drop_path = drop_path, .layer = random_layers_++},
                {x, branch}, x.shape);
}

void Network::Rename(const std::string& weight, const std::string& bias) {
  if (!status_.ok()) return;
  parameters_[parameters_.size() - 2].name = weight;
  parameters_.back().name = bias;
}

int Network::FindParameter(absl::string_view name) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].name == name) return static_cast<int>(i);
  }
  return kNoTensor;
}

void Network::AddDraw(int parameter, Draw::Kind kind, double scale) {
  draws_.push_back({.parameter = parameter, .kind = kind, .scale = scale});
}

void Network::AddDraw(const std::string& parameter, Draw::Kind kind,
                      double scale) {
  if (!status_.ok()) return;
  const int index = FindParameter(parameter);
  if (index == kNoTensor)
    return Fail(parameter, "the network has no parameter of this name");
  AddDraw(index, kind, scale);
}

void Network::DrawHeNormalFanOut(const std::string& layer) {
  const int weight = FindParameter(layer + ".weight");
  if (weight == kNoTensor)
    return Fail(layer, "the network has no layer of this name");
  const std::vector<int64_t>& shape = parameters_[weight].shape;
  const int64_t fan_out = shape[0] * shape[2] * shape[3];
  AddDraw(weight, Draw::Kind::kNormal,
          std::sqrt(2.0) / std::sqrt(static_cast<double>(fan_out)));
}

void Network::DrawAsTorchConstructs(const std::string& layer) {
  if (!status_.ok()) return;
  const int weight = FindParameter(layer + ".weight");
  if (weight == kNoTensor)
    return Fail(layer, "the network has no layer of this name");
  int64_t fan_in = 1;
  const std::vector<int64_t>& shape = parameters_[weight].shape;
  for (size_t i = 1; i < shape.size(); ++i) fan_in *= shape[i];
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  AddDraw(weight, Draw::Kind::kUniform, bound);
  const int bias = FindParameter(layer + ".bias");
  if (bias != kNoTensor) AddDraw(bias, Draw::Kind::kUniform, bound);
}

const Shape& Network::output_shape() const {
  return operations_.empty() ? input_ : operations_.back().output;
}

std::vector<int> Network::ValuesWithSeveralUsers() const {
  std::vector<int> users(operations_.size() + 1);
  for (const Operation& operation : operations_) {
    for (const int input : operation.inputs) ++users[input];
  }
  std::vector<int> values;
  for (size_t value = 1; value < users.size(); ++value) {
    if (users[value] > 1) values.push_back(static_cast<int>(value));
  }
  return values;
}

Parameters CreateParameters(const Network& network) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  for (const TensorDescription& parameter : network.parameters()) {
    shapes.emplace_back(parameter.name, parameter.shape);
  }
  Parameters parameters(std::move(shapes));
  for (int i = 0; i < parameters.count(); ++i) {
    const float first = network.parameters()[i].first_value;
    for (float& x : parameters.value(i)) x = first;
  }
  return parameters;
}

Parameters CreateParameters(const Network& network, uint64_t seed) {
  Parameters parameters = CreateParameters(network);
  TorchGenerator generator(seed);
  for (const Draw& draw : network.draws()) {
    RunDraw(draw, generator, parameters);
  }
  return parameters;
}

Buffers CreateBuffers(const Network& network) {
  Buffers buffers;
  for (const TensorDescription& buffer : network.buffers()) {
    if (buffer.counter) {
      buffers.AddCounter(buffer.name);
      continue;
    }
    const int index = buffers.AddFloats(buffer.name, buffer.shape);
    for (float& x : buffers.value(index)) x = buffer.first_value;
  }
  return buffers;
}

int64_t FlopsOf(const Network& network, int operation) {
  const Network::Operation& op = network.operations()[operation];
  const auto products_per_output = [&](int weight) {
    int64_t size = 1;
    for (const int64_t extent : network.parameters()[weight].shape) {
      size *= extent;
    }
    return size / op.output.c;
  };
  if (const auto* convolution = std::get_if<ConvolutionOp>(&op.kind)) {
    return 2 * op.output.size() * products_per_output(convolution->weight);
  }
  if (const auto* linear = std::get_if<LinearOp>(&op.kind)) {
    return 2 * op.output.size() * products_per_output(linear->weight);
  }
  if (std::holds_alternative<AttentionOp>(op.kind)) {
    const int64_t length = op.output.h * op.output.w;
    return 4 * length * length * op.output.c;
  }
  return 0;
}

int64_t FlopsOf(const Network& network) {
  int64_t flops = 0;
  for (size_t i = 0; i < network.operations().size(); ++i) {
    flops += FlopsOf(network, static_cast<int>(i));
  }
  return flops;
}

}  // namespace lockstep
