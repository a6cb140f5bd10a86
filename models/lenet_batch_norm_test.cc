// LeNet with batch norm: PyTorch's numbers, and what it is made of.
#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/buffers.h"
#include "models/compute_threads.h"
#include "models/lenet.h"
#include "models/lenet_golden.h"
#include "models/model.h"
#include "models/parameters.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;

// The weights of testdata/generate_goldens.py.
std::unique_ptr<Model> GoldenLeNet(float scale) {
  std::unique_ptr<Model> model = CreateLeNetWithBatchNorm(0);
  Parameters& parameters = model->parameters();
  for (int i = 0; i < parameters.count(); ++i) {
    const std::string& name = parameters.specs()[i].name;
    const std::span<float> values = parameters.value(i);
    if (name.ends_with(".weight")) {
      std::ranges::fill(values, 0.25f);
    } else if (name.ends_with(".bias")) {
      std::ranges::fill(values, 1.0f);
    } else {
      for (float& x : values) x *= scale;
    }
  }
  return model;
}

class LeNetBatchNormTest : public testing::Test {
 protected:
  void SetUp() override { SetComputeThreads(1); }

  // The error of a step whose model `change` has changed before.
  template <typename Change>
  double ErrorAfter(Change change) {
    const std::vector<Golden> goldens =
        ReadGolden("models/testdata/lenet_bn_golden.txt");
    EXPECT_EQ(goldens.size(), 1u);
    if (goldens.empty()) return NAN;
    const Golden& golden = goldens[0];
    EXPECT_EQ(golden.gradients.size(), 9u);
    EXPECT_EQ(golden.buffers.size(), 4u);
    const std::unique_ptr<Model> model = GoldenLeNet(golden.weight_scale);
    change(*model);
    const auto metrics =
        model->ForwardBackward(Samples(golden.n).batch(), 1, [](int) {});
    EXPECT_THAT(metrics, IsOk());
    if (!metrics.ok()) return NAN;
    return WorstError(golden, metrics->loss_sum, *model);
  }
};

TEST_F(LeNetBatchNormTest, MatchesPyTorch) {
  EXPECT_LE(ErrorAfter([](Model&) {}), kGoldenTolerance);
}

// The controls: one weight of a norm, or one running mean.
TEST_F(LeNetBatchNormTest, GoldenRejectsSmallFaults) {
  EXPECT_GT(
      ErrorAfter([](Model& model) { model.parameters().value(2)[19] *= 1.1f; }),
      kGoldenTolerance);
  EXPECT_GT(
      ErrorAfter([](Model& model) { model.buffers().value(0)[0] += 0.1f; }),
      kGoldenTolerance);
}

TEST_F(LeNetBatchNormTest, HasTheNamesOfItsParts) {
  const std::unique_ptr<Model> model = CreateLeNetWithBatchNorm(0);
  std::vector<std::string> names;
  for (const ParameterSpec& spec : model->parameters().specs()) {
    names.push_back(spec.name);
  }
  EXPECT_THAT(names,
              ElementsAre("W1", "b1", "bn1.weight", "bn1.bias", "W2", "b2",
                          "bn2.weight", "bn2.bias", "W3", "b3", "W4", "b4"));
  EXPECT_THAT(model->parameters().value(2), Each(1.0f));
  EXPECT_THAT(model->parameters().value(3), Each(0.0f));
  names.clear();
  for (const BufferSpec& spec : model->buffers().specs()) {
    names.push_back(spec.name);
  }
  EXPECT_THAT(names, ElementsAre("bn1.running_mean", "bn1.running_var",
                                 "bn1.num_batches_tracked", "bn2.running_mean",
                                 "bn2.running_var", "bn2.num_batches_tracked"));
  EXPECT_THAT(model->buffers().value(1), Each(1.0f));
}

TEST_F(LeNetBatchNormTest, DrawsLeNetsWeights) {
  const std::unique_ptr<Model> plain = CreateLeNet(3);
  const std::unique_ptr<Model> norm = CreateLeNetWithBatchNorm(3);
  const auto value = [](Model& model, int index) {
    const std::span<const float> values = model.parameters().value(index);
    return std::vector<float>(values.begin(), values.end());
  };
  EXPECT_EQ(value(*norm, 0), value(*plain, 0));
  EXPECT_EQ(value(*norm, 4), value(*plain, 2));
  EXPECT_EQ(value(*norm, 8), value(*plain, 4));
  EXPECT_EQ(value(*norm, 10), value(*plain, 6));
}

}  // namespace
}  // namespace lockstep
