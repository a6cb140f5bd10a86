// What lenet_test.cc does not show: networks that do not fit.
#include "models/cpu/classifier.h"

#include <cstdint>
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
#include "models/buffers.h"
#include "models/compute_threads.h"
#include "models/cpu/average_pool.h"
#include "models/cpu/batch_norm_layer.h"
#include "models/cpu/convolution.h"
#include "models/cpu/layer.h"
#include "models/cpu/linear.h"
#include "models/cpu/sequential.h"
#include "models/cpu/shape.h"
#include "models/model.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

using testing::_;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

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
