#include "models/cpu/classifier.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/fake_communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/layer.h"
#include "models/cpu/layer_test_util.h"
#include "models/cpu/layers.h"
#include "models/model.h"

namespace lockstep {
namespace {

using testing::_;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Metrics Loss(const std::vector<float>& logits,
             const std::vector<int32_t>& labels, int64_t classes) {
  return SoftmaxCrossEntropy(logits, labels, classes, 0, {});
}

TEST(SoftmaxCrossEntropyTest, EqualLogitsGiveLogOfClasses) {
  std::vector<float> gradient(8, kNan);
  const Metrics metrics =
      SoftmaxCrossEntropy(std::vector<float>(8, 3.0f),
                          std::vector<int32_t>{0, 2}, 4, 2.0f, gradient);
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
  SoftmaxCrossEntropy(logits, labels, 3, 1, gradient);
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

TEST(SoftmaxCrossEntropyTest, HugeLogitsDoNotOverflow) {
  std::vector<float> gradient(2, kNan);
  const Metrics metrics =
      SoftmaxCrossEntropy(std::vector<float>{1e30f, -1e30f},
                          std::vector<int32_t>{1}, 2, 1, gradient);
  EXPECT_NEAR(metrics.loss_sum, 2e30, 1e24);
  EXPECT_EQ(metrics.correct, 0);
  EXPECT_THAT(gradient, ElementsAre(1.0f, -1.0f));
}

TEST(SoftmaxCrossEntropyTest, GradientMayOverwriteLogits) {
  const std::vector<int32_t> labels = {0, 1};
  std::vector<float> logits = {1, 2, 3, -1, 0, 1}, gradient(6);
  SoftmaxCrossEntropy(logits, labels, 3, 0.5f, gradient);
  SoftmaxCrossEntropy(logits, labels, 3, 0.5f, logits);
  EXPECT_EQ(logits, gradient);
}

TEST(SoftmaxCrossEntropyTest, NanIsNeverCorrectAndShowsInTheLoss) {
  for (size_t at = 0; at < 3; ++at) {
    for (const int32_t label : {0, 1, 2}) {
      std::vector<float> logits = {1, 1, 1}, gradient(3);
      logits[at] = kNan;
      logits[label] += 5;
      const Metrics metrics = SoftmaxCrossEntropy(
          logits, std::vector<int32_t>{label}, 3, 1, gradient);
      EXPECT_EQ(metrics.correct, 0);
      EXPECT_TRUE(std::isnan(metrics.loss_sum));
      EXPECT_TRUE(std::isnan(gradient[label]));
    }
  }
  EXPECT_TRUE(std::isnan(Loss({kInfinity, 0}, {0}, 2).loss_sum));
}

TEST(SoftmaxCrossEntropyTest, EmptyBatchIsZero) {
  const Metrics metrics = Loss({}, {}, 10);
  EXPECT_EQ(metrics.loss_sum, 0);
  EXPECT_EQ(metrics.samples, 0);
}

TEST(CheckLabelsTest, NamesTheFirstOutOfRange) {
  const auto bad = [](const char* what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(CheckLabels({}, 3), IsOk());
  EXPECT_THAT(CheckLabels(std::vector<int32_t>{0, 1, 2}, 3), IsOk());
  EXPECT_THAT(CheckLabels(std::vector<int32_t>{0, 3, 4}, 3),
              bad("label 3 of sample 1 is not in [0, 3)"));
  EXPECT_THAT(CheckLabels(std::vector<int32_t>{-1}, 3),
              bad("label -1 of sample 0"));
}

// For two 1x1 convolutions and a linear layer. Values up to 1 keep the sums
// small, so that they are exact: every y is below 500 * 2 * 3 * 8 + 33.
Parameters MakeParameters() {
  Parameters parameters({{"W1", {3, 2, 1, 1}},
                         {"b1", {3}},
                         {"W2", {2, 3, 1, 1}},
                         {"b2", {2}},
                         {"W3", {8, 2}},
                         {"b3", {2}}});
  std::ranges::copy(Integers(parameters.values().size(), 1, /*seed=*/5),
                    parameters.values().begin());
  return parameters;
}

std::unique_ptr<Layer> Convolution(int weights, int64_t out, bool relu) {
  return CreateConvolution({.name = "conv",
                            .weights = weights,
                            .bias = weights + 1,
                            .out_channels = out,
                            .relu = relu});
}

std::unique_ptr<Layer> Linear() {
  return CreateLinear({.name = "linear",
                       .weights = 4,
                       .bias = 5,
                       .out_features = 2,
                       .relu = false});
}

// Nested in several ways, the same layers are the same function.
std::vector<std::unique_ptr<Layer>> Nestings() {
  std::vector<std::unique_ptr<Layer>> nestings;
  for (int inner = 1; inner <= 3; ++inner) {
    std::vector<std::unique_ptr<Layer>> first, all;
    first.push_back(Convolution(0, 3, true));
    if (inner >= 2) first.push_back(Convolution(2, 2, true));
    if (inner >= 3) first.push_back(Linear());
    all.push_back(CreateSequential("inner", std::move(first)));
    if (inner < 2) all.push_back(Convolution(2, 2, true));
    if (inner < 3) all.push_back(Linear());
    nestings.push_back(CreateSequential("outer", std::move(all)));
  }
  return nestings;
}

// y = A3 relu(A2 relu(A1 x)), and its derivative by x along the chain, in
// float64.
struct Chain {
  std::vector<double> y, dx, db1;
};

std::vector<double> Pointwise(const std::vector<double>& x,
                              std::span<const float> w,
                              std::span<const float> b, bool relu) {
  const size_t in = w.size() / b.size();
  std::vector<double> y;
  for (size_t i = 0; i < x.size(); i += in) {
    for (size_t o = 0; o < b.size(); ++o) {
      double sum = b[o];
      for (size_t k = 0; k < in; ++k) sum += x[i + k] * w[o * in + k];
      y.push_back(relu ? std::max(sum, 0.0) : sum);
    }
  }
  return y;
}

// The gradient of x from that of y, masked by y > 0; y's in place.
std::vector<double> PointwiseBackward(const std::vector<double>& y,
                                      std::vector<double>& dy,
                                      std::span<const float> w, size_t out) {
  const size_t in = w.size() / out;
  std::vector<double> dx(dy.size() / out * in);
  for (size_t i = 0; i < dy.size(); ++i) {
    if (!(y[i] > 0)) dy[i] = 0;
    for (size_t k = 0; k < in; ++k) {
      dx[i / out * in + k] += dy[i] * w[i % out * in + k];
    }
  }
  return dx;
}

Chain Reference(const Parameters& parameters, const LayerRun& run, int64_t n) {
  const auto p = [&](int i) { return parameters.value(i); };
  const std::vector<double> x(run.x.begin(), run.x.end());
  const std::vector<double> h1 = Pointwise(x, p(0), p(1), true);
  const std::vector<double> h2 = Pointwise(h1, p(2), p(3), true);
  Chain chain;
  std::vector<double> dh2(h2.size());
  const Shape hidden{.n = n, .c = 2, .h = 2, .w = 2};
  for (int64_t i = 0; i < n * 2; ++i) {
    double sum = p(5)[i % 2];
    for (int64_t f = 0; f < 8; ++f) {
      const int64_t at = At(hidden, i / 2, f / 4, f / 2 % 2, f % 2);
      sum += h2[at] * p(4)[f * 2 + i % 2];
      dh2[at] += double{run.dy[i]} * p(4)[f * 2 + i % 2];
    }
    chain.y.push_back(sum);
  }
  std::vector<double> dh1 = PointwiseBackward(h2, dh2, p(2), 2);
  chain.dx = PointwiseBackward(h1, dh1, p(0), 3);
  chain.db1.resize(3);
  for (size_t i = 0; i < dh1.size(); ++i) chain.db1[i % 3] += dh1[i];
  return chain;
}

TEST(SequentialTest, IsTheChainOfItsLayersHoweverNested) {
  const Shape input{.n = 3, .c = 2, .h = 2, .w = 2};
  for (const auto& layer : Nestings()) {
    Parameters parameters = MakeParameters();
    const auto run = RunLayer(*layer, parameters, input, true);
    ASSERT_THAT(run, IsOk());
    const Chain want = Reference(parameters, *run, input.n);
    EXPECT_THAT(CheckNear(run->y, want.y), IsOk());
    EXPECT_THAT(CheckNear(run->dx, want.dx), IsOk());
    EXPECT_THAT(CheckNear(parameters.gradient(1), want.db1), IsOk());
    EXPECT_THAT(run->ready, ElementsAre(5, 4, 3, 2, 1, 0));
  }
}

TEST(SequentialTest, PassesOnItsLayersErrors) {
  Parameters parameters = MakeParameters();
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(Convolution(0, 3, true));
  layers.push_back(Linear());
  const auto sequential = CreateSequential("net", std::move(layers));
  EXPECT_THAT(RunLayer(*sequential, parameters, {1, 2, 2, 2}, true).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("linear: parameter W3")));
}

TEST(SequentialTest, RejectsNoLayers) {
  Parameters parameters = MakeParameters();
  EXPECT_THAT(
      RunLayer(*CreateSequential("net", {}), parameters, {1, 2, 2, 2}, true)
          .status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "net: no layers"));
}

// What lenet_test.cc does not show of classifiers: networks that do not fit,
// and batch norm over a group.

constexpr Shape kSample = {.n = 1, .c = 1, .h = 1, .w = 2};

std::unique_ptr<Model> LinearClassifier(int64_t inputs, int64_t outputs,
                                        int64_t classes) {
  Parameters parameters({{"W", {inputs, outputs}}, {"b", {outputs}}});
  return CreateClassifier(kSample, classes, std::move(parameters), Buffers(),
                          CreateLinear({.name = "linear",
                                        .weights = 0,
                                        .bias = 1,
                                        .out_features = outputs}));
}

TEST(ClassifierTest, GradientOfALinearClassifier) {
  const std::unique_ptr<Model> model = LinearClassifier(2, 2, 2);
  const std::vector<float> images = {1, 2, 4, 8};
  const std::vector<int32_t> labels = {0, 1};
  ASSERT_THAT(model->ForwardBackward({images, labels}, 1, [](int) {}), IsOk());
  // Zero weights: softmax is 1/2 everywhere, so each sample adds x * (-+1/2).
  EXPECT_THAT(model->parameters().gradient(0),
              ElementsAre(1.5f, -1.5f, 3.0f, -3.0f));
  EXPECT_THAT(model->parameters().gradient(1), ElementsAre(0, 0));
}

TEST(ClassifierTest, RejectsANetworkThatGivesOtherLogits) {
  const std::vector<float> images = {1, 2};
  const std::vector<int32_t> labels = {1};
  EXPECT_THAT(
      LinearClassifier(2, 3, 2)->Evaluate({images, labels}),
      StatusIs(absl::StatusCode::kInternal,
               HasSubstr("the network gives 3 logits a sample for 2 classes")));
  EXPECT_THAT(LinearClassifier(3, 2, 2)->Evaluate({images, labels}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("linear: parameter W is [3,2]")));
}

constexpr Shape kImage = {.n = 1, .c = 1, .h = 3, .w = 3};
constexpr int64_t kPixels = 9;

// Convolution, batch norm, ReLU, average, linear.
std::unique_ptr<Model> BatchNormClassifier() {
  Parameters parameters({{"conv.weight", {4, 1, 2, 2}},
                         {"conv.bias", {4}},
                         {"bn.weight", {4}},
                         {"bn.bias", {4}},
                         {"fc.weight", {3, 4}},
                         {"fc.bias", {3}}});
  const std::span<float> values = parameters.values();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i * 7 % 11) / 8 - 0.5f;
  }
  Buffers buffers;
  buffers.AddFloats("bn.running_mean", {4});
  buffers.AddFloats("bn.running_var", {4});
  buffers.AddCounter("bn.num_batches_tracked");
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(CreateConvolution({.name = "conv",
                                      .weights = 0,
                                      .bias = 1,
                                      .out_channels = 4,
                                      .kernel = 2}));
  layers.push_back(CreateBatchNormLayer({.name = "bn",
                                         .weight = 2,
                                         .bias = 3,
                                         .running_mean = 0,
                                         .running_variance = 1,
                                         .batches = 2,
                                         .relu = true}));
  layers.push_back(CreateGlobalAveragePool("pool"));
  layers.push_back(CreateLinear({.name = "fc",
                                 .weights = 4,
                                 .bias = 5,
                                 .out_features = 3,
                                 .outputs_first = true}));
  return CreateClassifier(kImage, 3, std::move(parameters), std::move(buffers),
                          CreateSequential("net", std::move(layers)));
}

// n samples, or a rank's none.
struct Samples {
  explicit Samples(int64_t n) : images(n * kPixels), labels(n) {
    for (int64_t i = 0; i < n * kPixels; ++i) {
      images[i] = static_cast<float>(i * i % 29) / 16 - 1;
    }
    for (int64_t i = 0; i < n; ++i) labels[i] = static_cast<int32_t>(i % 3);
  }
  Batch batch() const { return {images, labels}; }

  std::vector<float> images;
  std::vector<int32_t> labels;
};

// What a rank has after a step on its part of a group's batch.
struct StepResult {
  Metrics metrics;
  std::vector<float> gradients, buffers;
  std::vector<int> ready;
};

absl::StatusOr<StepResult> Step(Communicator& group, int64_t samples) {
  SetComputeThreads(1);
  const std::unique_ptr<Model> model = BatchNormClassifier();
  EXPECT_EQ(model->ConvertSyncBatchNorm(group), 1);
  StepResult result;
  LOCKSTEP_ASSIGN_OR_RETURN(
      result.metrics,
      model->ForwardBackward(Samples(samples).batch(), 1, [&](int index) {
        result.ready.push_back(index);
      }));
  result.gradients.assign(model->parameters().gradients().begin(),
                          model->parameters().gradients().end());
  result.buffers.assign(model->buffers().floats().begin(),
                        model->buffers().floats().end());
  EXPECT_EQ(model->buffers().counter(2), 1);
  return result;
}

// Each rank's result of a step; rank r has samples[r].
std::vector<StepResult> Steps(const std::vector<int64_t>& samples) {
  std::vector<StepResult> results(samples.size());
  const auto statuses = RunRanks(
      Backend::kThreads, static_cast<int>(samples.size()),
      [&](Communicator& group) -> absl::Status {
        const int rank = group.rank();
        LOCKSTEP_ASSIGN_OR_RETURN(results[rank], Step(group, samples[rank]));
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
  return results;
}

// An empty rank adds nothing, to the bit, wherever it stands among the ranks.
TEST(ClassifierTest, ARankWithoutSamplesTakesPartInBatchNorm) {
  const StepResult one = Steps({5})[0];
  ASSERT_EQ(one.metrics.samples, 5);
  ASSERT_THAT(one.gradients, Contains(testing::Gt(0.01f)));
  for (const auto& samples :
       std::vector<std::vector<int64_t>>{{5, 0}, {0, 5}, {0, 5, 0}}) {
    const std::vector<StepResult> results = Steps(samples);
    for (size_t rank = 0; rank < samples.size(); ++rank) {
      EXPECT_EQ(results[rank].metrics.samples, samples[rank]);
      EXPECT_EQ(results[rank].buffers, one.buffers);
      EXPECT_THAT(results[rank].ready, ElementsAre(5, 4, 3, 2, 1, 0));
      if (samples[rank] == 0) {
        EXPECT_THAT(results[rank].gradients, Each(0.0f));
      } else {
        EXPECT_EQ(results[rank].gradients, one.gradients);
        EXPECT_EQ(results[rank].metrics.loss_sum, one.metrics.loss_sum);
      }
    }
  }
}

// The control: a rank that leaves the step out, as a model without plans for
// empty batches would, is missed. It says so at its next call.
TEST(ClassifierTest, ARankThatSkipsTheStepIsMissed) {
  const auto statuses =
      RunRanks(Backend::kThreads, 2, [&](Communicator& group) -> absl::Status {
        if (group.rank() == 1) return group.Barrier();
        return Step(group, 5).status();
      });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument, _)));
}

TEST(ClassifierTest, EvaluatesWithoutMessages) {
  class Silent : public FakeCommunicator {
   public:
    absl::Status Run(const Collective&) override {
      return absl::InternalError("a message");
    }
  };
  Silent group;
  const std::unique_ptr<Model> model = BatchNormClassifier();
  ASSERT_EQ(model->ConvertSyncBatchNorm(group), 1);
  for (const int64_t n : {0, 5}) {
    const auto metrics = model->Evaluate(Samples(n).batch());
    ASSERT_THAT(metrics, IsOk());
    EXPECT_EQ(metrics->samples, n);
  }
  for (const int64_t n : {0, 5}) {
    EXPECT_THAT(model->ForwardBackward(Samples(n).batch(), 1, [](int) {}),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("a message")));
  }
  EXPECT_EQ(model->buffers().counter(2), 0);
}

}  // namespace
}  // namespace lockstep
