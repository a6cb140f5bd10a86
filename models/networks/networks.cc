// The networks' layers and their initial weights.
#include "models/networks/networks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <numbers>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "models/cpu/classifier.h"
#include "models/cpu/layers.h"
#include "models/cpu/onednn.h"
#include "models/model.h"
#include "syncbn/cpu/cpu_batch_norm_kernels.h"

namespace lockstep {
namespace {

constexpr int64_t kClasses = 10;
constexpr int kStages = 4;  // ResNet's, each of twice the channels of the last.
constexpr int kBlocksPerStage = 2;
constexpr int64_t kResNetWidth = 64;
constexpr float kWeightScale = 0.01f;

constexpr ModelInfo kModels[] = {
    {.name = "lenet", .has_batch_norm = false},
    {.name = "lenet_bn", .has_batch_norm = true},
    {.name = "resnet18", .has_batch_norm = true},
};

// The description of a network as its layers are named, one by one: ResNet's in
// the order of PyTorch's state_dict.
struct Description {
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  Buffers buffers;
  std::vector<Layer> layers;

  // Returns the index of the first of the two.
  int Add(std::string weight, std::vector<int64_t> shape, std::string bias,
          int64_t out) {
    shapes.emplace_back(std::move(weight), std::move(shape));
    shapes.emplace_back(std::move(bias), std::vector<int64_t>{out});
    return static_cast<int>(shapes.size()) - 2;
  }

  BatchNormLayerOptions BatchNorm(const std::string& name, int64_t channels) {
    const int weight =
        Add(name + ".weight", {channels}, name + ".bias", channels);
    const int mean = buffers.AddFloats(name + ".running_mean", {channels});
    const int variance = buffers.AddFloats(name + ".running_var", {channels});
    std::ranges::fill(buffers.value(variance), 1.0f);
    return {.name = name,
            .weight = weight,
            .bias = weight + 1,
            .running_mean = mean,
            .running_variance = variance,
            .batches = buffers.AddCounter(name + ".num_batches_tracked")};
  }

  void AddBatchNorm(const std::string& name, int64_t channels) {
    layers.push_back(CreateBatchNormLayer(BatchNorm(name, channels)));
  }
};

// Weights of convolutions and linear layers are normal numbers, in their order;
// batch norm's are 1.
void FillWeights(TorchGenerator& generator, Parameters& parameters) {
  for (int i = 0; i < parameters.count(); i += 2) {
    const std::span<float> weights = parameters.value(i);
    if (parameters.specs()[i].shape.size() == 1) {
      std::ranges::fill(weights, 1.0f);
      continue;
    }
    generator.FillNormal(weights);
    for (float& x : weights) x *= kWeightScale;
  }
}

// LeNet's: ReLU follows its convolutions, or their batch norm.
void AddConvolution(Description& network, int number, int64_t in, int64_t out,
                    int64_t kernel, bool batch_norm) {
  const int weights =
      network.Add(absl::StrCat("W", number), {out, in, kernel, kernel},
                  absl::StrCat("b", number), out);
  network.layers.push_back(
      CreateConvolution({.name = absl::StrCat("conv", number),
                         .weights = weights,
                         .bias = weights + 1,
                         .out_channels = out,
                         .kernel = kernel,
                         .relu = !batch_norm}));
  if (batch_norm) network.AddBatchNorm(absl::StrCat("bn", number), out);
  network.layers.push_back(
      CreateAveragePool(absl::StrCat("pool", number), /*window=*/2));
}

void AddLinear(Description& network, int number, int64_t in, int64_t out,
               bool relu) {
  const int weights = network.Add(absl::StrCat("W", number + 2), {in, out},
                                  absl::StrCat("b", number + 2), out);
  network.layers.push_back(CreateLinear({.name = absl::StrCat("linear", number),
                                         .weights = weights,
                                         .bias = weights + 1,
                                         .out_features = out,
                                         .relu = relu}));
}

Description DescribeLeNet(bool batch_norm) {
  Description network;
  AddConvolution(network, 1, 1, 20, 3, batch_norm);
  AddConvolution(network, 2, 20, 50, 5, batch_norm);
  AddLinear(network, 1, 800, 128, /*relu=*/true);
  AddLinear(network, 2, 128, kClasses, /*relu=*/false);
  return network;
}

std::unique_ptr<Model> CreateLeNet(const std::string& name, bool batch_norm,
                                   uint64_t seed) {
  Description network = DescribeLeNet(batch_norm);
  Parameters parameters(network.shapes);
  TorchGenerator generator(seed);
  FillWeights(generator, parameters);
  return CreateClassifier({.n = 1, .c = 1, .h = 28, .w = 28}, kClasses,
                          std::move(parameters), std::move(network.buffers),
                          CreateSequential(name, std::move(network.layers)));
}

ConvolutionOptions Convolution(Description& network, const std::string& name,
                               int64_t in, int64_t out, int64_t kernel,
                               int64_t stride) {
  const int weights = network.Add(name + ".weight", {out, in, kernel, kernel},
                                  name + ".bias", out);
  return {.name = name,
          .weights = weights,
          .bias = weights + 1,
          .out_channels = out,
          .kernel = kernel,
          .stride = stride,
          .padding = kernel / 2};
}

// Its shortcut is a convolution if stride > 1.
void AddResidual(Description& network, const std::string& name, int64_t in,
                 int64_t out, int64_t stride) {
  ResidualOptions options;
  options.name = name;
  options.conv1 = Convolution(network, name + ".conv1", in, out, 3, stride);
  options.conv2 = Convolution(network, name + ".conv2", out, out, 3, 1);
  if (stride > 1) {
    options.conv3 = Convolution(network, name + ".conv3", in, out, 1, stride);
  }
  options.bn1 = network.BatchNorm(name + ".bn1", out);
  options.bn2 = network.BatchNorm(name + ".bn2", out);
  network.layers.push_back(CreateResidual(std::move(options)));
}

Description DescribeResNet18(int64_t width) {
  Description network;
  network.layers.push_back(
      CreateConvolution(Convolution(network, "0", 1, width, 3, 1)));
  network.AddBatchNorm("1", width);
  int64_t in = width;
  for (int stage = 0; stage < kStages; ++stage) {
    const int64_t out = width << stage;
    for (int block = 0; block < kBlocksPerStage; ++block) {
      AddResidual(network, absl::StrCat("resnet_block", stage + 1, ".", block),
                  in, out, in == out ? 1 : 2);
      in = out;
    }
  }
  network.layers.push_back(CreateGlobalAveragePool("global_avg_pool"));
  const int weights =
      network.Add("fc.1.weight", {kClasses, in}, "fc.1.bias", kClasses);
  network.layers.push_back(CreateLinear({.name = "fc.1",
                                         .weights = weights,
                                         .bias = weights + 1,
                                         .out_features = kClasses,
                                         .outputs_first = true}));
  return network;
}

Parameters InitialResNetParameters(const Description& description,
                                   uint64_t seed) {
  Parameters parameters(description.shapes);
  TorchGenerator generator(seed);
  // What PyTorch's modules are constructed with: uniform in +-1/sqrt(fan in).
  // The weights' numbers are drawn, in their turn, and overwritten below.
  for (int i = 0; i < parameters.count(); i += 2) {
    const ParameterSpec& spec = parameters.specs()[i];
    if (spec.shape.size() == 1) continue;  // Batch norm's.
    const int64_t fan_in = spec.size / spec.shape[0];
    const float bound =
        static_cast<float>(1 / std::sqrt(static_cast<double>(fan_in)));
    generator.FillUniform(-bound, bound, parameters.value(i));
    generator.FillUniform(-bound, bound, parameters.value(i + 1));
  }
  FillWeights(generator, parameters);
  return parameters;
}

absl::Status NoSuchModel() {
  return absl::InvalidArgumentError(
      absl::StrCat("no such model; there are ", ModelNames()));
}

constexpr size_t kBlock = 16;

// Box and Muller on one block of uniform numbers: element j gives the radius
// and element j + 8 the angle of two normal numbers, which take their places.
void NormalFromUniform(std::span<float, kBlock> block) {
  constexpr float kTwoPi = 2 * std::numbers::pi_v<float>;
  for (size_t j = 0; j < kBlock / 2; ++j) {
    // In (0, 1], so that the logarithm is finite.
    const float u = 1 - block[j];
    // The angle is rounded to float32, as there; the rest is not.
    const float theta = kTwoPi * block[j + kBlock / 2];
    const double radius = std::sqrt(-2 * std::log(static_cast<double>(u)));
    block[j] = static_cast<float>(radius * std::cos(double{theta}));
    block[j + kBlock / 2] =
        static_cast<float>(radius * std::sin(double{theta}));
  }
}

}  // namespace

const ModelInfo* FindModel(absl::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kModels), std::end(kModels),
                   [name](const ModelInfo& info) { return info.name == name; });
  return found == std::end(kModels) ? nullptr : found;
}

std::string ModelNames() {
  std::string names;
  for (const ModelInfo& info : kModels) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", info.name);
  }
  return names;
}

absl::StatusOr<std::unique_ptr<Model>> CreateModel(absl::string_view name,
                                                   uint64_t seed) {
  if (name == "lenet") return CreateLeNet(seed);
  if (name == "lenet_bn") return CreateLeNetWithBatchNorm(seed);
  if (name == "resnet18") return CreateResNet18(seed);
  return NoSuchModel();
}

absl::StatusOr<PlannedCalls> CallsOf(absl::string_view name, int64_t batch) {
  const ModelInfo* const info = FindModel(name);
  if (info == nullptr) return NoSuchModel();
  Description network = name == "resnet18"
                            ? DescribeResNet18(kResNetWidth)
                            : DescribeLeNet(info->has_batch_norm);
  Parameters parameters(network.shapes);
  CpuBatchNormKernels kernels;
  PlannedCalls calls;
  LayerContext context = {.engine = {},
                          .stream = {},
                          .parameters = &parameters,
                          .buffers = &network.buffers};
  context.batch_norm_kernels = &kernels;
  context.calls = &calls;
  // For no images layers work out their shapes and nothing else.
  LOCKSTEP_RETURN_IF_ERROR(
      CreateSequential(std::string(name), std::move(network.layers))
          .plan(context,
                {.n = 0,
                 .c = info->channels,
                 .h = info->height,
                 .w = info->width},
                /*input_gradient=*/false)
          .status());
  for (ConvolutionCall& call : calls.convolutions) call.input.n = batch;
  for (Shape& shape : calls.batch_norms) shape.n = batch;
  return calls;
}

std::unique_ptr<Model> CreateLeNet(uint64_t seed) {
  return CreateLeNet("lenet", /*batch_norm=*/false, seed);
}

std::unique_ptr<Model> CreateLeNetWithBatchNorm(uint64_t seed) {
  return CreateLeNet("lenet_bn", /*batch_norm=*/true, seed);
}

std::unique_ptr<Model> CreateResNet18(uint64_t seed, int64_t image_size,
                                      int64_t width) {
  Description network = DescribeResNet18(width);
  Parameters parameters = InitialResNetParameters(network, seed);
  return CreateClassifier(
      {.n = 1, .c = 1, .h = image_size, .w = image_size}, kClasses,
      std::move(parameters), std::move(network.buffers),
      CreateSequential("resnet18", std::move(network.layers)));
}

// PyTorch's normal_ and uniform_ on the CPU, restated from its documented
// behaviour and checked against its output.

TorchGenerator::TorchGenerator(uint64_t seed)
    : generator_(static_cast<uint32_t>(seed)) {}

void TorchGenerator::FillNormal(std::span<float> out) {
  if (out.size() < kBlock) {
    for (float& x : out) x = static_cast<float>(NextNormal());
    return;
  }
  for (float& x : out) x = UniformFloat();
  for (size_t i = 0; i + kBlock <= out.size(); i += kBlock) {
    NormalFromUniform(out.subspan(i).first<kBlock>());
  }
  if (out.size() % kBlock == 0) return;
  // The last 16 are drawn again, over some that were already normal.
  const std::span<float, kBlock> tail = out.last<kBlock>();
  for (float& x : tail) x = UniformFloat();
  NormalFromUniform(tail);
}

void TorchGenerator::FillUniform(float low, float high, std::span<float> out) {
  // The difference is rounded to float32, as there; the rest is rounded once.
  const double range = high - low;
  for (float& x : out) x = static_cast<float>(UniformFloat() * range + low);
}

float TorchGenerator::UniformFloat() {
  return static_cast<float>(generator_() & 0xffffff) * 0x1p-24f;
}

double TorchGenerator::UniformDouble() {
  const uint64_t high = generator_();
  const uint64_t low = generator_();
  constexpr uint64_t kMask = (uint64_t{1} << 53) - 1;
  return static_cast<double>(((high << 32) | low) & kMask) * 0x1p-53;
}

double TorchGenerator::NextNormal() {
  if (kept_.has_value()) {
    const double normal = *kept_;
    kept_.reset();
    return normal;
  }
  const double u1 = UniformDouble();
  const double u2 = UniformDouble();
  const double radius = std::sqrt(-2 * std::log1p(-u2));
  const double theta = 2 * std::numbers::pi * u1;
  kept_ = radius * std::sin(theta);
  return radius * std::cos(theta);
}

}  // namespace lockstep
