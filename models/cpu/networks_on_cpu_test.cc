// Tests how networks behave as models of the CPU: metrics, gradients, the order
// in which they are ready, batch norm over ranks. //models/reference compares
// the networks' numbers with PyTorch's.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/model.h"

namespace lockstep {
namespace {

using testing::_;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kPixels = 28 * 28;

struct Samples {
  explicit Samples(int64_t n) : images(n * kPixels), labels(n) {
    for (int64_t i = 0; i < n * kPixels; ++i) {
      images[i] = static_cast<float>((i * i + 31 * i) % 127 - 40) / 64;
    }
    for (int64_t i = 0; i < n; ++i) labels[i] = (i * 7 + 3) % 10;
  }
  Batch batch() const { return {images, labels}; }

  std::vector<float> images;
  std::vector<int32_t> labels;
};

// Returns LeNet with initial weights times `scale`. A larger scale gives larger
// gradients in the first layers.
std::unique_ptr<Model> ScaledLeNet(float scale) {
  std::unique_ptr<Model> model = *CreateModel("lenet", 0);
  for (float& x : model->parameters().values()) x *= scale;
  return model;
}

std::vector<float> Gradients(Model& model, const Batch& batch,
                             float scale = 1.0f) {
  std::ranges::fill(model.parameters().gradients(),
                    std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(model.ForwardBackward(batch, scale, [](int) {}), IsOk());
  const auto gradients = model.parameters().gradients();
  return {gradients.begin(), gradients.end()};
}

std::vector<std::string> NamesOf(const std::vector<TensorSpec>& specs) {
  std::vector<std::string> names;
  for (const auto& spec : specs) names.push_back(spec.name);
  return names;
}

// One thread, as in a rank; more threads would spin on a busy machine.
class LeNetTest : public testing::Test {
 protected:
  void SetUp() override { SetComputeThreads(1); }
};

TEST_F(LeNetTest, EvaluateGivesTheMetricsOfForwardBackward) {
  const std::unique_ptr<Model> model = ScaledLeNet(8);
  for (const int64_t n : {0, 17}) {
    const Samples samples(n);
    const absl::StatusOr<Metrics> trained =
        model->ForwardBackward(samples.batch(), 1, [](int) {});
    const std::vector<float> gradients(model->parameters().gradients().begin(),
                                       model->parameters().gradients().end());
    const absl::StatusOr<Metrics> evaluated = model->Evaluate(samples.batch());
    ASSERT_THAT(trained, IsOk());
    ASSERT_THAT(evaluated, IsOk());
    EXPECT_EQ(evaluated->loss_sum, trained->loss_sum);
    EXPECT_EQ(evaluated->loss_sum == 0, n == 0);
    EXPECT_EQ(evaluated->correct, trained->correct);
    EXPECT_EQ(evaluated->samples, n);
    EXPECT_TRUE(std::ranges::equal(gradients, model->parameters().gradients()));
  }
}

// Scaling by a power of two changes only exponents, so the comparison is exact.
TEST_F(LeNetTest, ScalesGradientsAndZeroesThemOfAnEmptyBatch) {
  const Samples samples(3);
  const std::unique_ptr<Model> model = ScaledLeNet(8);
  std::vector<float> want = Gradients(*model, samples.batch());
  for (float& g : want) g /= 4;
  EXPECT_EQ(Gradients(*model, samples.batch(), 0.25f), want);
  EXPECT_THAT(Gradients(*model, Samples(0).batch()), Each(0.0f));
}

// Returns the order in which a step announces gradients. Expects each gradient
// once, with its final value.
std::vector<int> ReadyOrder(Model& model, const Batch& batch) {
  std::vector<int> order;
  std::map<int, std::vector<float>> at_ready;
  EXPECT_THAT(model.ForwardBackward(
                  batch, 1,
                  [&](int index) {
                    order.push_back(index);
                    const auto now = model.parameters().gradient(index);
                    at_ready[index].assign(now.begin(), now.end());
                  }),
              IsOk());
  EXPECT_EQ(order.size(), at_ready.size());
  for (const auto& [index, gradient] : at_ready) {
    EXPECT_TRUE(
        std::ranges::equal(gradient, model.parameters().gradient(index)))
        << index;
  }
  return order;
}

TEST_F(LeNetTest, CallsReadyFromLastToFirstWithFinalGradients) {
  const std::unique_ptr<Model> model = ScaledLeNet(8);
  for (const int64_t n : {0, 1, 17}) {
    EXPECT_THAT(ReadyOrder(*model, Samples(n).batch()),
                ElementsAre(7, 6, 5, 4, 3, 2, 1, 0));
  }
}

// Uses more batch sizes than plans are kept, and the first size again at the
// end.
TEST_F(LeNetTest, SameBitsWhateverRanBefore) {
  const Samples samples(17);
  const std::unique_ptr<Model> model = ScaledLeNet(8);
  const std::vector<float> want = Gradients(*model, samples.batch());
  for (int64_t n = 1; n <= 12; ++n) {
    Gradients(*model, Samples(n).batch());
  }
  EXPECT_EQ(Gradients(*model, samples.batch()), want);
  EXPECT_EQ(Gradients(*ScaledLeNet(8), samples.batch()), want);
}

TEST_F(LeNetTest, NamesWhatIsWrongWithABatch) {
  const std::unique_ptr<Model> model = *CreateModel("lenet", 0);
  Samples samples(3);
  const auto both = [&](const Batch& batch, const std::string& what) {
    const auto matches =
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
    EXPECT_THAT(model->Evaluate(batch), matches);
    EXPECT_THAT(model->ForwardBackward(batch, 1, [](int) { FAIL(); }), matches);
  };
  both({std::span(samples.images).first(2351), samples.labels},
       "the images have 2351 floats; 3 labels");
  both({samples.images, {}}, "the images have 2352 floats; 0 labels");
  samples.labels[1] = 10;
  both(samples.batch(), "label 10 of sample 1 is not in [0, 10)");
  samples.labels[1] = -1;
  both(samples.batch(), "label -1 of sample 1");
  samples.labels[1] = 9;
  EXPECT_THAT(model->Evaluate(samples.batch()), IsOk());
}

TEST(LeNetBatchNormTest, DrawsLeNetsWeights) {
  const std::unique_ptr<Model> plain = *CreateModel("lenet", 3);
  const std::unique_ptr<Model> norm = *CreateModel("lenet_bn", 3);
  const auto value = [](Model& model, int index) {
    const std::span<const float> values = model.parameters().value(index);
    return std::vector<float>(values.begin(), values.end());
  };
  EXPECT_EQ(value(*norm, 0), value(*plain, 0));
  EXPECT_EQ(value(*norm, 4), value(*plain, 2));
  EXPECT_EQ(value(*norm, 8), value(*plain, 4));
  EXPECT_EQ(value(*norm, 10), value(*plain, 6));
}

// A rank's results after a step on its part of a group's batch.
struct GroupStep {
  Metrics metrics;
  std::vector<float> gradients, buffers;
  std::vector<int> ready;
};

absl::StatusOr<GroupStep> Step(Communicator& group, int64_t samples) {
  SetComputeThreads(1);
  const std::unique_ptr<Model> model = *CreateModel("lenet_bn", 0);
  EXPECT_EQ(model->ConvertSyncBatchNorm(group), 2);
  GroupStep result;
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

// Returns each rank's result of a step; rank r has samples[r] samples.
std::vector<GroupStep> Steps(const std::vector<int64_t>& samples) {
  std::vector<GroupStep> results(samples.size());
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

// An empty rank does not change any bit of the results, whatever its number.
TEST(LeNetBatchNormTest, ARankWithoutSamplesTakesPartInBatchNorm) {
  const GroupStep one = Steps({5})[0];
  ASSERT_EQ(one.metrics.samples, 5);
  ASSERT_THAT(one.gradients, Contains(testing::Gt(0.01f)));
  for (const auto& samples :
       std::vector<std::vector<int64_t>>{{5, 0}, {0, 5}, {0, 5, 0}}) {
    const std::vector<GroupStep> results = Steps(samples);
    for (size_t rank = 0; rank < samples.size(); ++rank) {
      EXPECT_EQ(results[rank].metrics.samples, samples[rank]);
      EXPECT_EQ(results[rank].buffers, one.buffers);
      EXPECT_THAT(results[rank].ready,
                  ElementsAre(11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
      if (samples[rank] == 0) {
        EXPECT_THAT(results[rank].gradients, Each(0.0f));
      } else {
        EXPECT_EQ(results[rank].gradients, one.gradients);
        EXPECT_EQ(results[rank].metrics.loss_sum, one.metrics.loss_sum);
      }
    }
  }
}

// The control: if a rank skips the step, as a model without plans for empty
// batches would, the group reports an error. The rank's next call reports the
// error too.
TEST(LeNetBatchNormTest, ARankThatSkipsTheStepIsMissed) {
  const auto statuses =
      RunRanks(Backend::kThreads, 2, [&](Communicator& group) -> absl::Status {
        if (group.rank() == 1) return group.Barrier();
        return Step(group, 5).status();
      });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument, _)));
}

TEST(LeNetBatchNormTest, EvaluatesWithoutMessages) {
  class Silent : public FakeCommunicator {
   public:
    // With one rank nothing would be sent.
    int world_size() const override { return 2; }
    absl::Status Run(const Collective&) override {
      return absl::InternalError("a message");
    }
  };
  Silent group;
  const std::unique_ptr<Model> model = *CreateModel("lenet_bn", 0);
  ASSERT_EQ(model->ConvertSyncBatchNorm(group), 2);
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

// The order of the names; //models/reference compares all names with PyTorch's.
TEST(NamesTest, ComeInTheOrderOfTheSources) {
  const std::unique_ptr<Model> lenet = *CreateModel("lenet", 0);
  EXPECT_THAT(NamesOf(lenet->parameters().specs()),
              ElementsAre("W1", "b1", "W2", "b2", "W3", "b3", "W4", "b4"));
  EXPECT_THAT(lenet->parameters().specs()[2].shape, ElementsAre(50, 20, 5, 5));
  EXPECT_THAT(lenet->parameters().specs()[4].shape, ElementsAre(800, 128));
  const std::unique_ptr<Model> norm = *CreateModel("lenet_bn", 0);
  EXPECT_THAT(NamesOf(norm->parameters().specs()),
              ElementsAre("W1", "b1", "bn1.weight", "bn1.bias", "W2", "b2",
                          "bn2.weight", "bn2.bias", "W3", "b3", "W4", "b4"));
  EXPECT_THAT(norm->parameters().value(2), Each(1.0f));
  EXPECT_THAT(norm->parameters().value(3), Each(0.0f));
  EXPECT_THAT(NamesOf(norm->buffers().specs()),
              ElementsAre("bn1.running_mean", "bn1.running_var",
                          "bn1.num_batches_tracked", "bn2.running_mean",
                          "bn2.running_var", "bn2.num_batches_tracked"));
  const std::unique_ptr<Model> resnet =
      *CreateModel("resnet18_d2l", 0, {.height = 8, .width = 8});
  ASSERT_EQ(resnet->buffers().count(), 51);
  EXPECT_EQ(resnet->buffers().specs()[2].name, "1.num_batches_tracked");
  EXPECT_EQ(resnet->buffers().specs()[50].name,
            "resnet_block4.1.bn2.num_batches_tracked");
}

TEST(ResNet18Test, CallsReadyOnceForEachParameterWithItsFinalGradient) {
  SetComputeThreads(1);
  const std::unique_ptr<Model> model = *CreateModel("resnet18_d2l", 0);
  EXPECT_EQ(ReadyOrder(*model, Samples(2).batch()).size(), 76u);
}

TEST(CreateModelTest, TakesTheSeedAndListsTheNamesThatThereAre) {
  const auto first = CreateModel("lenet", /*seed=*/1);
  const auto second = CreateModel("lenet", /*seed=*/2);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_NE((*first)->parameters().values()[0],
            (*second)->parameters().values()[0]);
}
}  // namespace
}  // namespace lockstep
