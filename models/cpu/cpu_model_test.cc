// Tests of networks on the CPU: the loss, the memory of a step, random masks,
// and errors. models/reference compares the operations' results with their
// definitions and with PyTorch.
#include "models/cpu/cpu_model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "base/vector_unit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/algorithm.h"
#include "models/cpu/lane_model.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

auto Invalid(const char* what) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
}

// The loss.

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns a batch in which only the labels matter. Keeps the labels.
Batch LabelsOnlyBatch(const std::vector<int32_t>& labels) {
  static std::vector<int32_t>& kept = *new std::vector<int32_t>;
  kept = labels;
  return {.images = {}, .labels = kept};
}

Metrics Loss(const std::vector<float>& logits,
             const std::vector<int32_t>& labels, int64_t classes) {
  return SoftmaxCrossEntropy(logits, LabelsOnlyBatch(labels), classes, 0, {});
}

TEST(SoftmaxCrossEntropyTest, EqualLogitsGiveLogOfClasses) {
  std::vector<float> gradient(8, kNan);
  const Metrics metrics = SoftmaxCrossEntropy(
      std::vector<float>(8, 3.0f), LabelsOnlyBatch({0, 2}), 4, 2.0f, gradient);
  EXPECT_NEAR(metrics.loss_sum, 2 * std::log(4.0), 1e-15);
  EXPECT_EQ(metrics.samples, 2);
  EXPECT_EQ(metrics.correct, 1);  // Of equal logits the first counts.
  EXPECT_THAT(gradient,
              ElementsAre(-1.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, -1.5f, 0.5f));
}

TEST(SoftmaxCrossEntropyTest, GradientIsTheSlopeOfTheLoss) {
  const std::vector<float> logits = {0.5f, -1.25f, 2.0f, 0.0f, 3.0f, -2.0f};
  const std::vector<int32_t> labels = {1, 1};
  std::vector<float> gradient(6, kNan);
  SoftmaxCrossEntropy(logits, LabelsOnlyBatch(labels), 3, 1, gradient);
  constexpr float kStep = 0x1p-10f;  // Exact in these logits.
  for (size_t i = 0; i < logits.size(); ++i) {
    std::vector<float> above = logits, below = logits;
    above[i] += kStep;
    below[i] -= kStep;
    const double slope =
        (Loss(above, labels, 3).loss_sum - Loss(below, labels, 3).loss_sum) /
        (2 * kStep);
    // The third derivative of the loss is below 1/2: step^2 / 6 * 1/2.
    EXPECT_NEAR(gradient[i], slope, 0x1p-20 / 12 + 0x1p-24);
  }
}

TEST(SoftmaxCrossEntropyTest, TakesHugeLogitsAndNone) {
  std::vector<float> gradient(2, kNan);
  const Metrics metrics = SoftmaxCrossEntropy(
      std::vector<float>{1e30f, -1e30f}, LabelsOnlyBatch({1}), 2, 1, gradient);
  EXPECT_NEAR(metrics.loss_sum, 2e30, 1e24);
  EXPECT_EQ(metrics.correct, 0);
  EXPECT_THAT(gradient, ElementsAre(1.0f, -1.0f));
  EXPECT_EQ(Loss({}, {}, 10).loss_sum, 0);
  EXPECT_EQ(Loss({}, {}, 10).samples, 0);
}

TEST(SoftmaxCrossEntropyTest, GradientMayOverwriteLogits) {
  const std::vector<int32_t> labels = {0, 1};
  std::vector<float> logits = {1, 2, 3, -1, 0, 1}, gradient(6);
  SoftmaxCrossEntropy(logits, LabelsOnlyBatch(labels), 3, 0.5f, gradient);
  SoftmaxCrossEntropy(logits, LabelsOnlyBatch(labels), 3, 0.5f, logits);
  EXPECT_EQ(logits, gradient);
}

TEST(SoftmaxCrossEntropyTest, NanIsNeverCorrectAndShowsInTheLoss) {
  for (size_t at = 0; at < 3; ++at) {
    for (const int32_t label : {0, 1, 2}) {
      std::vector<float> logits = {1, 1, 1}, gradient(3);
      logits[at] = kNan;
      logits[label] += 5;
      const Metrics metrics =
          SoftmaxCrossEntropy(logits, LabelsOnlyBatch({label}), 3, 1, gradient);
      EXPECT_EQ(metrics.correct, 0);
      EXPECT_TRUE(std::isnan(metrics.loss_sum));
      EXPECT_TRUE(std::isnan(gradient[label]));
    }
  }
  EXPECT_TRUE(std::isnan(Loss({kInfinity, 0}, {0}, 2).loss_sum));
}

TEST(SoftmaxCrossEntropyTest, MixesTheLossesOfTwoLabels) {
  const std::vector<float> logits = {0.5f, -1.25f, 2.0f};
  const std::vector<int32_t> labels = {1}, others = {2};
  const std::vector<float> shares = {0.25f};
  const auto loss = [&](const Batch& batch, std::span<float> gradient) {
    return SoftmaxCrossEntropy(logits, batch, 3, 1, gradient).loss_sum;
  };
  std::vector<float> mixed(3), first(3), second(3);
  const double both = loss({.images = {},
                            .labels = labels,
                            .other_labels = others,
                            .shares = shares},
                           mixed);
  const double one = loss({.images = {}, .labels = labels}, first);
  const double other = loss({.images = {}, .labels = others}, second);
  EXPECT_NEAR(both, 0.25 * one + 0.75 * other, 1e-15);
  for (int k = 0; k < 3; ++k) {
    EXPECT_NEAR(mixed[k], 0.25 * first[k] + 0.75 * second[k], 0x1p-23);
  }
}

// The memory of a step.

// The results of a step on samples [begin, end) of a batch of noise.
struct Outcome {
  double loss = 0;
  std::vector<float> gradients;
  std::vector<float> buffers;
};

constexpr int64_t kSamples = 5;

std::vector<float> Noise(int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(size);
  for (float& x : values) {
    x = static_cast<float>(random() >> 8) * 0x1p-23f - 1;
  }
  return values;
}

std::unique_ptr<CpuReplica> MakeReplica(const std::string& spec,
                                        const CpuReplicaOptions& options) {
  const NetworkInput input = {
      .channels = 3, .height = 32, .width = 32, .classes = 4};
  absl::StatusOr<Network> network = CreateNetwork(spec, input);
  EXPECT_THAT(network, IsOk());
  auto replica = CreateCpuReplica(*std::move(network), options);
  EXPECT_THAT(replica, IsOk());
  return *std::move(replica);
}

Outcome TakeStep(Model& model, int64_t begin, int64_t end, int64_t step = 3) {
  const int64_t size = model.input_shape().size();
  const std::vector<float> images = Noise(kSamples * size, 5);
  const std::vector<int32_t> labels = {0, 1, 2, 3, 1};
  const std::vector<int64_t> samples = {11, 12, 13, 14, 15};
  const auto count = static_cast<size_t>(end - begin);
  const Batch batch = {
      .images = std::span(images).subspan(begin * size, count * size),
      .labels = std::span(labels).subspan(begin, count),
      .samples = std::span(samples).subspan(begin, count),
      .seed = 1,
      .step = step};
  std::vector<int> ready(model.parameters().count());
  const auto metrics = model.ForwardBackward(
      batch, 1.0f / kSamples, [&](int index) { ++ready[index]; });
  EXPECT_THAT(metrics, IsOk());
  EXPECT_THAT(ready, Each(1));
  const std::span<float> gradients = model.parameters().gradients();
  const std::span<float> buffers = model.buffers().floats();
  return {metrics.ok() ? metrics->loss_sum : std::nan(""),
          {gradients.begin(), gradients.end()},
          {buffers.begin(), buffers.end()}};
}

const char* const kSpecs[] = {
    "lenet_bn", "resnet18_d2l:width=8", "resnet18_d2l:width=32",
    "resnet50:width=8",
    "vit:patch=8,width=16,depth=2,heads=2,dropout=0.2,attention_dropout=0.1,"
    "drop_path=0.3"};

// If buffers shared memory while both are needed, the bits would change.
TEST(StepMemoryTest, SharingChangesNoBits) {
  for (const std::string spec : kSpecs) {
    for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
      if (!CheckActivationType(type).ok()) continue;  // StepTest skips itself.
      const auto shared = MakeReplica(spec, {.seed = 1, .type = type});
      const auto apart =
          MakeReplica(spec, {.seed = 1, .type = type, .share_memory = false});
      for (int step = 0; step < 2; ++step) {
        const Outcome one = TakeStep(*shared, 0, kSamples);
        const Outcome other = TakeStep(*apart, 0, kSamples);
        EXPECT_EQ(one.loss, other.loss) << spec;
        EXPECT_EQ(one.gradients, other.gradients) << spec;
        EXPECT_EQ(one.buffers, other.buffers) << spec;
        EXPECT_GT(std::ranges::count_if(one.gradients,
                                        [](float x) { return x != 0; }),
                  std::ssize(one.gradients) / 2);
      }
      EXPECT_LT(shared->workspace_bytes(), 0.8 * apart->workspace_bytes())
          << spec;
    }
  }
}

TEST(StepMemoryTest, AStepAfterOthersHasTheBitsOfTheFirst) {
  for (const std::string spec : kSpecs) {
    const auto fresh = MakeReplica(spec, {.seed = 1});
    const auto used = MakeReplica(spec, {.seed = 1});
    const std::vector<float> images = Noise(used->input_shape().size(), 8);
    const std::vector<int32_t> label = {3};
    TakeStep(*used, 0, 2);
    TakeStep(*used, 0, kSamples);
    EXPECT_THAT(used->Evaluate({.images = images, .labels = label}), IsOk());
    EXPECT_EQ(TakeStep(*used, 0, kSamples).gradients,
              TakeStep(*fresh, 0, kSamples).gradients)
        << spec;
  }
}

TEST(AlignedBufferTest, BeginsWhereAPageDoesOnceItFillsOne) {
  constexpr int64_t kFloats = AlignedBuffer::kHugePage / 4;
  for (const auto& [size, alignment] :
       {std::pair(kFloats, AlignedBuffer::kHugePage),
        {kFloats - 1, AlignedBuffer::kAlignment}}) {
    AlignedBuffer buffer(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % alignment, 0);
    EXPECT_THAT(buffer.span(), Each(0.0f));
    buffer.data()[size - 1] = 1;
    const AlignedBuffer moved = std::move(buffer);
    EXPECT_EQ(moved.span().back(), 1);
  }
}

// bfloat16 rounds to 8 bits, so gradients keep their direction.
TEST(StepTest, BFloat16IsCloseToFloat32) {
  const absl::Status supported = CheckActivationType(DataType::kBFloat16);
  if (!supported.ok()) GTEST_SKIP() << supported.message();
  for (const std::string spec : {kSpecs[0], kSpecs[4]}) {
    const auto exact = MakeReplica(spec, {.seed = 1});
    const auto rounded =
        MakeReplica(spec, {.seed = 1, .type = DataType::kBFloat16});
    const Outcome a = TakeStep(*exact, 0, kSamples);
    const Outcome b = TakeStep(*rounded, 0, kSamples);
    double dot = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < a.gradients.size(); ++i) {
      dot += double{a.gradients[i]} * b.gradients[i];
      aa += double{a.gradients[i]} * a.gradients[i];
      bb += double{b.gradients[i]} * b.gradients[i];
    }
    EXPECT_GT(dot / std::sqrt(aa * bb), 0.98) << spec;
    EXPECT_NE(a.gradients, b.gradients) << spec;
  }
}

// Takes a step of a network with a convolution of few pixels. Everything before
// the linear layer is positive, so a ReLU after the convolution changes no
// value; it only selects another plan.
Outcome StepOfFewPixels(const Shape& input,
                        const Network::ConvolutionOptions& options) {
  Network network("few", input);
  const Value x =
      network.Convolution("stem", network.input(), {.out = 64, .kernel = 1});
  const Value y = network.Convolution("conv", x, options);
  network.Linear("fc", y, {.out = 4});
  auto model = CreateCpuReplica(std::move(network), {.lanes = false});
  EXPECT_THAT(model, IsOk());
  if (!model.ok()) return {};
  Parameters& parameters = (*model)->parameters();
  std::ranges::copy(Noise(std::ssize(parameters.values()), 3),
                    parameters.values().begin());
  std::ranges::fill(parameters.value(1), 4.0f);  // The stem's bias.
  const int fc = parameters.count() - 2;
  for (int i = 2; i < fc; ++i) {
    for (float& value : parameters.value(i)) value = std::abs(value);
  }
  for (float& value : parameters.value(fc)) value *= 1e-5f;
  return TakeStep(**model, 0, kSamples);
}

TEST(StepTest, ConvolutionOfFewPixelsIsConvolution) {
  struct Case {
    int64_t h, w;
    Network::ConvolutionOptions options;
  };
  const Case cases[] = {
      {4, 4, {.out = 64, .kernel = 3, .padding = 1}},
      {7, 7, {.out = 80, .kernel = 3, .padding = 1, .bias = false}},
      {1, 1, {.out = 64, .kernel = 3, .padding = 1}},  // Padding all around.
      {5, 9, {.out = 64, .kernel = 3, .padding = 0}},
      {7, 6, {.out = 128, .kernel = 3, .stride = 2, .padding = 1}},
      {8, 9, {.out = 64, .kernel = 5, .stride = 3, .padding = 2}},
      {6, 7, {.out = 64, .kernel = 2, .stride = 3, .padding = 1}},  // Gaps.
  };
  for (Case tried : cases) {
    SCOPED_TRACE(testing::Message() << tried.h << "x" << tried.w << ", kernel "
                                    << tried.options.kernel << ", stride "
                                    << tried.options.stride);
    const Shape input = {.n = 1, .c = 2, .h = tried.h, .w = tried.w};
    const Outcome got = StepOfFewPixels(input, tried.options);
    tried.options.relu = true;
    const Outcome want = StepOfFewPixels(input, tried.options);
    EXPECT_NEAR(got.loss, want.loss, 1e-6);
    ASSERT_EQ(got.gradients.size(), want.gradients.size());
    // First the stem's weights and bias, then those of the convolution and the
    // linear layer.
    const int64_t stem = 3 * 64;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, stem},
                                     {stem, std::ssize(want.gradients)}}) {
      double difference = 0, norm = 0;
      for (int64_t i = begin; i < end; ++i) {
        difference += std::pow(double{got.gradients[i]} - want.gradients[i], 2);
        norm += std::pow(want.gradients[i], 2);
      }
      EXPECT_GT(norm, 0);
      EXPECT_LT(std::sqrt(difference / norm), 1e-5);
    }
    EXPECT_NE(got.gradients, want.gradients);  // There are two plans.
  }
}

TEST(StepTest, AnEmptyBatchHasZeroGradients) {
  for (const std::string spec : kSpecs) {
    const auto model = MakeReplica(spec, {.seed = 1});
    std::ranges::fill(model->parameters().gradients(), kNan);
    const Outcome empty = TakeStep(*model, 2, 2);
    EXPECT_EQ(empty.loss, 0);
    EXPECT_THAT(empty.gradients, Each(0.0f));
  }
}

// Masks are keyed by sample and step. A batch in two parts has the loss of the
// whole batch and, to rounding, its gradient; at another step both differ.
TEST(MaskTest, DoesNotDependOnTheSplitOfTheBatch) {
  const std::string spec = kSpecs[4];
  const auto model = MakeReplica(spec, {.seed = 1});
  const Outcome whole = TakeStep(*model, 0, kSamples);
  const Outcome head = TakeStep(*model, 0, 2);
  const Outcome tail = TakeStep(*model, 2, kSamples);
  const Outcome later = TakeStep(*model, 0, kSamples, /*step=*/4);
  EXPECT_NEAR(whole.loss, head.loss + tail.loss, 1e-5);
  double difference = 0, norm = 0, other = 0;
  for (size_t i = 0; i < whole.gradients.size(); ++i) {
    const double sum = double{head.gradients[i]} + tail.gradients[i];
    difference += std::pow(whole.gradients[i] - sum, 2);
    norm += std::pow(whole.gradients[i], 2);
    other += std::pow(whole.gradients[i] - later.gradients[i], 2);
  }
  EXPECT_LT(std::sqrt(difference / norm), 1e-5);
  EXPECT_GT(std::sqrt(other / norm), 0.05);
}

// Sixteen samples at a time.

// A chain like LeNet's with other sizes. Blocks of channels, columns and
// filters are not full, and pools drop rows and columns. One layer has no pool
// after it. The first convolution is not computed again.
Network Chain(int64_t channels, int64_t height, int64_t width) {
  Network network("chain", {.n = 1, .c = channels, .h = height, .w = width});
  Value x = network.Convolution("conv1", network.input(),
                                {.out = 7, .kernel = 5, .relu = true});
  x = network.Pool("pool1", x, {.kernel = 4, .stride = 4});
  x = network.Convolution("conv2", x, {.out = 6, .kernel = 3, .relu = true});
  x = network.Convolution("conv3", x, {.out = 3, .kernel = 3});
  x = network.Pool("pool2", x, {.kernel = 2, .stride = 2});
  x = network.Linear("linear1", x, {.out = 19, .relu = true});
  network.Linear("linear2", x, {.out = 4});
  return network;
}

Network LinearAlone() {
  Network network("linear", {.n = 1, .c = 2, .h = 3, .w = 3});
  network.Linear("linear", network.input(), {.out = 4});
  return network;
}

// Returns values of -1, 0 or 1. Images are such values, and weights a quarter
// of such values. Every layer's output is then exact in any order of additions,
// so each ReLU decides alike.
std::vector<float> Signs(int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(size);
  for (float& x : values) x = static_cast<float>(random() % 3) - 1;
  return values;
}

// Returns the loss and then the gradients of a step on the first n of 33
// samples.
std::vector<std::vector<float>> StepOf(Model& model, int64_t n) {
  const int64_t size = model.input_shape().size();
  const std::vector<float> images = Signs(33 * size, 6);
  for (int i = 0; i < model.parameters().count(); ++i) {
    const std::span<float> values = model.parameters().value(i);
    std::ranges::transform(Signs(std::ssize(values), i), values.begin(),
                           [](float x) { return x / 4; });
  }
  std::vector<int32_t> labels, others;
  std::vector<float> shares;
  for (int32_t i = 0; i < n; ++i) {
    labels.push_back(i % 4);
    others.push_back(i % 3);
    shares.push_back(0.75f);
  }
  const Batch batch = {.images = std::span(images).first(n * size),
                       .labels = labels,
                       .other_labels = others,
                       .shares = shares};
  const auto tested = model.Evaluate(batch);
  EXPECT_THAT(tested, IsOk());
  std::ranges::fill(model.parameters().gradients(), kNan);
  const auto trained = model.ForwardBackward(batch, 1.0f / 33, [](int) {});
  EXPECT_THAT(trained, IsOk());
  if (!tested.ok() || !trained.ok()) return {};
  EXPECT_EQ(tested->loss_sum, trained->loss_sum);
  EXPECT_EQ(tested->correct, trained->correct);
  EXPECT_EQ(trained->samples, n);
  std::vector<std::vector<float>> outcome = {
      {static_cast<float>(trained->loss_sum)}};
  for (int i = 0; i < model.parameters().count(); ++i) {
    const std::span<const float> gradient = model.parameters().gradient(i);
    outcome.emplace_back(gradient.begin(), gradient.end());
  }
  return outcome;
}

// Returns the largest relative difference of the loss and of any gradient.
double Difference(const std::vector<std::vector<float>>& a,
                  const std::vector<std::vector<float>>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    double difference = 0, norm = 0;
    for (size_t k = 0; k < a[i].size(); ++k) {
      difference += std::pow(double{a[i][k]} - b[i][k], 2);
      norm += std::pow(double{b[i][k]}, 2);
    }
    if (difference == 0 && norm == 0) continue;  // No samples.
    const double relative = std::sqrt(difference / norm);
    largest = relative <= largest ? largest : relative;  // NaN stays.
  }
  return largest;
}

constexpr double kLaneTolerance = 1e-4;  // Sums of some 1000 terms, rounded.

TEST(LanesTest, GiveWhatOneDnnGives) {
  const NetworkInput small = {
      .channels = 2, .height = 19, .width = 22, .classes = 4};
  const std::vector<Network> networks = {
      *CreateNetwork("lenet", {.classes = 4}), *CreateNetwork("lenet", small),
      Chain(1, 33, 46), Chain(3, 42, 36), LinearAlone()};
  for (const Network& network : networks) {
    SCOPED_TRACE(network.name());
    ASSERT_EQ(FitsLanes(network), BestVectorUnit() == VectorUnit::kAvx512);
    const auto lanes = CreateCpuReplica(network, {.seed = 3});
    const auto other = CreateCpuReplica(network, {.seed = 3, .lanes = false});
    ASSERT_THAT(lanes, IsOk());
    ASSERT_THAT(other, IsOk());
    // Values that samples of another batch left must not count as a sample.
    const std::vector<float> nans(16 * network.input_shape().size(), kNan);
    EXPECT_THAT((*lanes)->Evaluate(
                    {.images = nans, .labels = std::vector<int32_t>(16)}),
                IsOk());
    for (const int threads : {1, 3}) {
      SetComputeThreads(threads);
      for (const int64_t n : {1, 33, 15, 0, 17, 16}) {
        const auto got = StepOf(**lanes, n), want = StepOf(**other, n);
        EXPECT_LE(Difference(got, want), kLaneTolerance) << n;
        EXPECT_EQ(StepOf(**lanes, n), got) << n;  // To the bit.
      }
    }
    // The control: one sample less makes a difference.
    EXPECT_GT(Difference(StepOf(**lanes, 32), StepOf(**other, 33)),
              100 * kLaneTolerance);
  }
  SetComputeThreads(1);
}

TEST(LanesTest, TakeOnlyWhatTheyCompute) {
  const auto fits = [](int64_t out, const PoolOp& pool, int64_t padding,
                       int64_t kernel, bool bias) {
    Network network("network", {.n = 1, .c = 1, .h = 12, .w = 12});
    Value x = network.Convolution(
        "conv", network.input(),
        {.out = out, .kernel = kernel, .padding = padding, .bias = bias});
    x = network.Pool("pool", x, pool);
    network.Linear("linear", x, {.out = 4});
    return FitsLanes(network);
  };
  const PoolOp pool = {.kernel = 2, .stride = 2};
  EXPECT_EQ(fits(64, pool, 0, 5, true),
            BestVectorUnit() == VectorUnit::kAvx512);
  EXPECT_FALSE(fits(65, pool, 0, 5, true));
  EXPECT_FALSE(fits(64, {.kernel = 3, .stride = 2}, 0, 5, true));
  EXPECT_FALSE(
      fits(64, {.maximum = true, .kernel = 2, .stride = 2}, 0, 5, true));
  EXPECT_FALSE(fits(64, pool, 1, 5, true));
  EXPECT_FALSE(fits(64, pool, 0, 4, true));
  EXPECT_FALSE(fits(64, pool, 0, 5, false));
  for (const std::string spec : kSpecs) {
    EXPECT_FALSE(FitsLanes(*CreateNetwork(spec, {.height = 32, .width = 32})));
  }
}

TEST(StepTest, GradientsMayLieElsewhere) {
  const auto model = MakeReplica("lenet_bn", {.seed = 1});
  const std::vector<float> want = TakeStep(*model, 0, kSamples).gradients;
  const auto moved = MakeReplica("lenet_bn", {.seed = 1});
  auto memory = std::make_shared<AlignedBuffer>(want.size());
  moved->parameters().PlaceGradients(memory->span(), memory);
  TakeStep(*moved, 0, kSamples);
  EXPECT_THAT(memory->span(), ElementsAreArray(want));
}

TEST(StepTest, TimesEveryOperation) {
  for (const std::string spec : {"lenet", "lenet_bn"}) {
    const auto model = MakeReplica(spec, {.seed = 1});
    OperationTimes times;
    model->CollectTimes(&times);
    TakeStep(*model, 0, kSamples);
    ASSERT_EQ(times.forward_seconds.size(),
              model->network().operations().size());
    EXPECT_THAT(times.forward_seconds, Each(testing::Gt(0)));
    EXPECT_THAT(times.backward_seconds, Each(testing::Gt(0)));
    model->CollectTimes(nullptr);
    const OperationTimes before = times;
    TakeStep(*model, 0, kSamples);
    EXPECT_EQ(times.forward_seconds, before.forward_seconds);
  }
}

TEST(StepTest, NamesWhatDoesNotFit) {
  const auto model = MakeReplica("lenet_bn", {.seed = 1});
  const std::vector<float> images(3 * 32 * 32);
  const std::vector<int32_t> good = {3}, bad = {4};
  const auto fault = [&](const Batch& batch) {
    return model->Evaluate(batch).status();
  };
  EXPECT_THAT(fault({.images = images, .labels = good}), IsOk());
  EXPECT_THAT(fault({.images = images, .labels = bad}),
              Invalid("label 4 of sample 0 is not in [0, 4)"));
  EXPECT_THAT(fault({.images = std::span(images).first(5), .labels = good}),
              Invalid("the images have 5 floats; 1 labels of 3072"));
  const std::vector<int64_t> two = {1, 2};
  EXPECT_THAT(fault({.images = images, .labels = good, .samples = two}),
              Invalid("2 values for a batch of 1 labels"));
  Network open("open", {.n = 1, .c = 1, .h = 4, .w = 4});
  open.Convolution("conv", open.input(), {.out = 2, .kernel = 3});
  EXPECT_THAT(CreateCpuReplica(std::move(open)),
              Invalid("open: ends in images of 2x2, not in one value"));
  EXPECT_THAT(
      CreateCpuReplica(*CreateNetwork("lenet"), {.type = DataType::kFloat16}),
      Invalid("activations of float16 are not"));
}

// A channel with one value has no variance.
TEST(StepTest, NamesTheBatchNormOfOneValue) {
  const auto model = MakeReplica("resnet18_d2l:width=8", {.seed = 1});
  const std::vector<float> image(3 * 32 * 32);
  const std::vector<int32_t> label = {0};
  EXPECT_THAT(
      model->ForwardBackward({.images = image, .labels = label}, 1, [](int) {}),
      IsOk());
  auto small = CreateCpuReplica(
      *CreateNetwork("resnet18_d2l:width=8", {.height = 8, .width = 8}));
  ASSERT_THAT(small, IsOk());
  EXPECT_THAT((*small)->ForwardBackward(
                  {.images = std::span(image).first(64), .labels = label}, 1,
                  [](int) {}),
              Invalid("resnet_block4.0.bn1: batch norm: one value"));
}

}  // namespace
}  // namespace lockstep
