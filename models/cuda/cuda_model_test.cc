// Tests of networks on a GPU, or on the stand-ins. conformance/network checks
// every network on several ranks.
#include "models/cuda/cuda_model.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_status.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cuda/convolution.h"
#include "models/cuda/cuda_replica.h"
#include "models/cuda/test_vector.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/optimizer.h"
#include "models/reference/bounded.h"
#include "models/reference/network_inputs.h"
#include "models/reference/network_reference.h"
#include "tools/cuda/gpu_test.h"

#ifdef LOCKSTEP_CUDA_STANDIN
#include "standin/control.h"
#endif

namespace lockstep {
namespace {

using testing::Each;
using testing::HasSubstr;

// A vision transformer with every kind of random mask.
constexpr const char* kVit =
    "vit:patch=4,width=12,depth=2,heads=3,dropout=0.1,attention_dropout=0.1,"
    "drop_path=0.2";

constexpr ConvolutionPrecision kBFloat16 = ConvolutionPrecision::kBFloat16;
constexpr ConvolutionPrecision kFloat16 = ConvolutionPrecision::kFloat16;

constexpr NetworkInput kInput = {
    .channels = 2, .height = 16, .width = 18, .classes = 5};
// Six patches for kVit.
constexpr NetworkInput kPatches = {
    .channels = 2, .height = 8, .width = 12, .classes = 5};

Network Described(const std::string& spec, const NetworkInput& input = kInput) {
  absl::StatusOr<Network> network = CreateNetwork(spec, input);
  EXPECT_THAT(network, IsOk());
  return *std::move(network);
}

// A replica on its own stream.
class CudaModelTest : public GpuTest {
 protected:
  void Create(const std::string& spec, const CudaReplicaOptions& options = {}) {
    replica_.reset();
    absl::StatusOr<Stream> stream = MakeStream();
    ASSERT_THAT(stream, IsOk());
    stream_ = *std::move(stream);
    const NetworkInput input = spec == kVit ? kPatches : kInput;
    auto replica =
        CudaReplica::Create(Described(spec, input), stream_.get(), options);
    ASSERT_THAT(replica, IsOk());
    replica_ = *std::move(replica);
    host_.emplace(CreateParameters(replica_->network()));
    buffers_ = CreateBuffers(replica_->network());
  }

  // Takes a training step on n random samples, and returns the gradients in the
  // host's order: those of `scale` times the mean loss.
  std::vector<float> Step(int64_t n, float scale = 1) {
    const RandomSamples samples = RandomBatchOf(replica_->network(), 1, n);
    images_.emplace(samples.images);
    labels_.emplace(samples.labels);
    std::vector<int> ready(host_->count());
    EXPECT_THAT(
        replica_->Enqueue(
            {{.images = images_->span(), .labels = labels_->span()}},
            scale / static_cast<float>(n), [&](int index) { ++ready[index]; }),
        IsOk());
    EXPECT_THAT(ready, Each(1));
    EXPECT_THAT(replica_->Download(*host_, buffers_), IsOk());
    EXPECT_THAT(replica_->DownloadGradients(*host_), IsOk());
    return {host_->gradients().begin(), host_->gradients().end()};
  }

  Stream stream_;
  std::unique_ptr<CudaReplica> replica_;
  std::optional<Parameters> host_;
  Buffers buffers_;
  std::optional<TestVector<float>> images_;
  std::optional<TestVector<int32_t>> labels_;
};

TEST_F(CudaModelTest, LeNetsGradientsAreWithinTheBounds) {
  Create("lenet");
  const Network& network = replica_->network();
  const std::vector<float> values = RandomParameters(network, 1);
  std::ranges::copy(values, host_->values().begin());
  ASSERT_THAT(replica_->Upload(*host_, buffers_), IsOk());
  const RandomSamples samples = RandomBatchOf(network, 1, 6);
  const BoundedStep want =
      BoundedReference(network, values, samples.batch(), /*world_size=*/1);
  const std::vector<float> got = Step(6);
  EXPECT_LE(LargestError(want.gradient, got), 1);
  const absl::StatusOr<Metrics> metrics = replica_->TakeMetrics();
  ASSERT_THAT(metrics, IsOk());
  EXPECT_NEAR(metrics->loss_sum, want.loss_sum, want.loss_sum_bound);
  EXPECT_EQ(metrics->samples, 6);
  // The control: one weight differs.
  host_->values()[3] += 0.25f;
  ASSERT_THAT(replica_->Upload(*host_, buffers_), IsOk());
  EXPECT_GT(LargestError(want.gradient, Step(6)), 1);
}

// If buffers shared memory while both are needed, the bits would change.
TEST_F(CudaModelTest, SharingMemoryChangesNoBits) {
  for (const char* const spec : {"lenet_bn", "resnet18_d2l:width=4", kVit}) {
    for (const auto precision : {ConvolutionPrecision::kFloat32, kBFloat16}) {
      CudaReplicaOptions options = {.seed = 2, .precision = precision};
      Create(spec, options);
      const std::vector<float> shared = Step(3);
      options.share_memory = false;
      Create(spec, options);
      EXPECT_EQ(Step(3), shared) << spec;
      EXPECT_EQ(Step(3), shared) << spec << ", again";
    }
  }
}

// The update changes the float32 parameters, even by less than bfloat16 holds,
// and the next step computes with them.
TEST_F(CudaModelTest, UpdatesFloat32ParametersOfSixteenBitSteps) {
  Create("lenet_bn", {.seed = 2, .precision = kBFloat16});
  const std::vector<float> gradients = Step(3);
  std::vector<float> want(host_->values().begin(), host_->values().end());
  constexpr float kSmall = 0x1p-14f;
  TestVector<StepNumbers> numbers(std::vector<StepNumbers>{
      {.learning_rate = kSmall}, {.learning_rate = 1}});
  ASSERT_THAT(replica_->EnqueueUpdate(numbers.data()), IsOk());
  for (size_t i = 0; i < want.size(); ++i) {
    const volatile float product = kSmall * gradients[i];
    want[i] -= product;
  }
  EXPECT_NE(want,
            std::vector<float>(host_->values().begin(), host_->values().end()));
  ASSERT_THAT(replica_->Download(*host_, buffers_), IsOk());
  EXPECT_TRUE(std::ranges::equal(host_->values(), want));
  EXPECT_FALSE(std::ranges::equal(Rounded(DataType::kBFloat16, want), want));
  // A large update and a step have the gradients of a replica that starts with
  // the updated parameters.
  ASSERT_THAT(replica_->EnqueueUpdate(numbers.data() + 1), IsOk());
  const std::vector<float> after = Step(3);
  EXPECT_NE(after, gradients);
  const std::vector<float> values(host_->values().begin(),
                                  host_->values().end());
  Create("lenet_bn", {.seed = 3, .precision = kBFloat16});
  std::ranges::copy(values, host_->values().begin());
  ASSERT_THAT(replica_->Upload(*host_, buffers_), IsOk());
  EXPECT_EQ(Step(3), after);
}

// The optimizers that keep state, and one that does not.
const std::vector<OptimizerOptions>& Optimizers() {
  static const auto& optimizers = *new std::vector<OptimizerOptions>{
      {.weight_decay = 0.01},
      {.momentum = 0.9, .weight_decay = 0.01},
      {.kind = OptimizerKind::kAdamW, .weight_decay = 0.01}};
  return optimizers;
}

// On the host the state is in the network's order. A second replica continues
// from the state halfway.
TEST_F(CudaModelTest, UpdatesWithTheBitsOfTheCpusOptimizer) {
  for (const OptimizerOptions& options : Optimizers()) {
    Create("lenet_bn", {.seed = 2, .optimizer = options});
    ASSERT_THAT(replica_->Download(*host_, buffers_), IsOk());
    std::vector<float> values(host_->values().begin(), host_->values().end());
    Optimizer cpu(options, std::ssize(values));
    TestVector<StepNumbers> numbers(
        std::vector<StepNumbers>{{.learning_rate = 0.01f}});
    for (int step = 0; step < 4; ++step) {
      if (step == 2) {
        Create("lenet_bn", {.seed = 3, .optimizer = options});
        std::ranges::copy(values, host_->values().begin());
        ASSERT_THAT(replica_->Upload(*host_, buffers_), IsOk());
        ASSERT_THAT(replica_->UploadOptimizer(cpu.state()), IsOk());
      }
      const std::vector<float> gradients = Step(3);
      cpu.BeginStep(0.01f);
      cpu.Update(0, values, gradients);
      ASSERT_THAT(replica_->EnqueueUpdate(numbers.data()), IsOk());
      ASSERT_THAT(replica_->Download(*host_, buffers_), IsOk());
      EXPECT_TRUE(std::ranges::equal(host_->values(), values)) << step;
      EXPECT_THAT(replica_->DownloadOptimizer(), IsOkAndHolds(cpu.state()));
    }
  }
}

TEST_F(CudaModelTest, RefusesTheStateOfAnotherOptimizer) {
  Create("lenet", {.optimizer = {.momentum = 0.9}});
  EXPECT_THAT(replica_->UploadOptimizer({}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("must have 1 of")));
  Create("lenet");
  EXPECT_THAT(replica_->UploadOptimizer({}), IsOk());
  EXPECT_THAT(replica_->DownloadOptimizer(), IsOkAndHolds(OptimizerState()));
}

// Gradients that float16 cannot hold are zero without a loss scale.
TEST_F(CudaModelTest, ALossScaleKeepsSmallGradients) {
  Create("lenet", {.precision = kFloat16, .first_loss_scale = 1});
  const auto zeros = [](const std::vector<float>& values) {
    return std::ranges::count(values, 0.0f);
  };
  constexpr float kTiny = 0x1p-22f;
  const int64_t lost = zeros(Step(3, kTiny));
  Create("lenet", {.precision = kFloat16, .first_loss_scale = 0x1p22f});
  const std::vector<float> kept = Step(3, kTiny);
  EXPECT_LT(zeros(kept), lost / 2);
  // The scale is gone from the gradients, once.
  Create("lenet", {.precision = kFloat16, .first_loss_scale = 1});
  const std::vector<float> want = Step(3, 1);
  double apart = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    apart += std::pow(kept[i] / kTiny - want[i], 2);
    size += std::pow(want[i], 2);
  }
  EXPECT_LT(std::sqrt(apart / size), 0.01);
}

TEST_F(CudaModelTest, ParametersComeBackAsTheyWere) {
  Create("resnet50:width=4", {.seed = 3});
  const Parameters want = CreateParameters(replica_->network(), 3);
  ASSERT_THAT(replica_->Download(*host_, buffers_), IsOk());
  EXPECT_TRUE(std::ranges::equal(host_->values(), want.values()));
  for (const TensorSpec& spec : replica_->parameters().specs()) {
    EXPECT_EQ(spec.offset % 16, 0) << spec.name;
  }
}

TEST_F(CudaModelTest, AnEmptyBatchHasZeroGradients) {
  Create("lenet_bn");
  EXPECT_GT(std::ranges::max(Step(2)), 0);
  EXPECT_THAT(Step(0), Each(0.0f));
}

TEST_F(CudaModelTest, EvaluationChangesNothing) {
  Create("lenet_bn");
  const RandomSamples samples = RandomBatchOf(replica_->network(), 1, 4);
  TestVector<float> images(samples.images);
  TestVector<int32_t> labels(samples.labels);
  const std::vector<float> gradients = Step(4);
  ASSERT_THAT(replica_->TakeMetrics(), IsOk());
  const Buffers before = buffers_;
  ASSERT_THAT(replica_->EnqueueEvaluation(
                  {{.images = images.span(), .labels = labels.span()}}),
              IsOk());
  const absl::StatusOr<Metrics> metrics = replica_->TakeMetrics();
  ASSERT_THAT(metrics, IsOk());
  EXPECT_EQ(metrics->samples, 4);
  EXPECT_GT(metrics->loss_sum, 0);
  ASSERT_THAT(replica_->Download(*host_, buffers_), IsOk());
  ASSERT_THAT(replica_->DownloadGradients(*host_), IsOk());
  EXPECT_TRUE(std::ranges::equal(buffers_.floats(), before.floats()));
  EXPECT_TRUE(std::ranges::equal(host_->gradients(), gradients));
}

TEST_F(CudaModelTest, RefusesBatchesThatDoNotFit) {
  Create("lenet");
  const RandomSamples samples = RandomBatchOf(replica_->network(), 1, 3);
  TestVector<float> images(samples.images);
  TestVector<int32_t> labels(samples.labels);
  const auto step = [&](const Batch& batch) {
    return replica_->Enqueue({batch}, 1, [](int) {});
  };
  EXPECT_THAT(
      step({.images = images.span(), .labels = labels.span().first(2)}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 labels need")));
  const size_t size = samples.images.size() / 3;
  EXPECT_THAT(step({.images = images.span().subspan(1, size),
                    .labels = labels.span().first(1)}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("not aligned to 16 bytes")));
  EXPECT_THAT(step({.images = images.span(),
                    .labels = labels.span(),
                    .shares = images.span().first(2)}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("2 shares and 0 other labels")));
  const int64_t number = 0;
  EXPECT_THAT(step({.images = images.span(),
                    .labels = labels.span(),
                    .samples = {&number, 1}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("1 sample numbers for 3 labels")));
}

TEST_F(CudaModelTest, RefusesANetworkWithoutClasses) {
  const Network images("images", {.c = 4, .h = 3, .w = 3});
  EXPECT_THAT(CreateCudaModel(images, 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("images: ends in images of 3x3")));
}

// The end of an array, which is not aligned, stands for an empty part of it.
TEST_F(CudaModelTest, AnEmptyBatchNeedsNoAlignment) {
  const absl::StatusOr<std::unique_ptr<Model>> model =
      CreateCudaModel(Described("lenet_bn"), 0);
  ASSERT_THAT(model, IsOk());
  const std::vector<float> images(17);
  for (size_t end = 13; end <= images.size(); ++end) {
    const Batch empty = {.images = std::span(images).subspan(end, 0),
                         .labels = {}};
    EXPECT_THAT((*model)->ForwardBackward(empty, 1, [](int) {}), IsOk());
  }
}

TEST_F(CudaModelTest, AModelTrainsOnHostMemory) {
  const Network network = Described("lenet_bn");
  const absl::StatusOr<std::unique_ptr<Model>> created =
      CreateCudaModel(network, 0, {.seed = 4});
  ASSERT_THAT(created, IsOk());
  Model& model = **created;
  EXPECT_TRUE(std::ranges::equal(model.parameters().values(),
                                 CreateParameters(network, 4).values()));
  const RandomSamples samples = RandomBatchOf(network, 1, 8);
  double first_loss = 0, loss = 0;
  for (int step = 0; step < 20; ++step) {
    const absl::StatusOr<Metrics> metrics =
        model.ForwardBackward(samples.batch(), 1.0f / 8, [](int) {});
    ASSERT_THAT(metrics, IsOk());
    loss = metrics->mean_loss();
    if (step == 0) first_loss = loss;
    for (size_t i = 0; i < model.parameters().values().size(); ++i) {
      model.parameters().values()[i] -=
          0.1f * model.parameters().gradients()[i];
    }
  }
  EXPECT_LT(loss, 0.8 * first_loss);
  EXPECT_EQ(model.buffers().counters()[0], 20);
  Batch wrong = samples.batch();
  wrong.images = wrong.images.first(wrong.images.size() - 1);
  EXPECT_FALSE(model.Evaluate(wrong).ok());
}

#ifdef LOCKSTEP_CUDA_STANDIN

TEST_F(CudaModelTest, AStepNeitherWaitsNorAllocates) {
  for (const auto& [spec, precision] :
       {std::pair("lenet", ConvolutionPrecision::kFloat32),
        {"lenet_bn", ConvolutionPrecision::kFloat32},
        {"resnet18:width=4", kBFloat16},
        {"lenet_bn", kFloat16},
        {kVit, ConvolutionPrecision::kFloat32},
        {kVit, kBFloat16}}) {
    Create(spec, {.precision = precision,
                  .optimizer = {.kind = OptimizerKind::kAdamW}});
    Step(3);
    const Batch batch = {.images = images_->span(), .labels = labels_->span()};
    TestVector<StepNumbers> numbers(
        std::vector<StepNumbers>{{.learning_rate = 0.1f}});
    standin::ResetCounts();
    for (int step = 0; step < 3; ++step) {
      ASSERT_THAT(replica_->Enqueue({batch}, 1.0f / 3, [](int) {}), IsOk());
      ASSERT_THAT(replica_->EnqueueUpdate(numbers.data()), IsOk());
    }
    EXPECT_EQ(standin::Counts().host_waits, 0) << spec;
    EXPECT_EQ(standin::Counts().allocations, 0) << spec;
    EXPECT_GT(standin::Counts().launches, 0) << spec;
  }
}

// The other launch is that of one thread, which begins the step.
TEST_F(CudaModelTest, UpdatesInOneLaunchOverAllParameters) {
  for (const OptimizerOptions& options : Optimizers()) {
    Create("lenet_bn", {.optimizer = options});
    Step(3);
    TestVector<StepNumbers> numbers(
        std::vector<StepNumbers>{{.learning_rate = 0.1f}});
    standin::ResetCounts();
    ASSERT_THAT(replica_->EnqueueUpdate(numbers.data()), IsOk());
    EXPECT_EQ(standin::Counts().launches, 2);
  }
}

#endif  // LOCKSTEP_CUDA_STANDIN

}  // namespace
}  // namespace lockstep
