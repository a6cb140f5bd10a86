#include "models/cuda/loss.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/cuda/test_vector.h"
#include "models/model.h"
#include "tools/cuda/gpu_test.h"

namespace lockstep {
namespace {

class LossTest : public GpuTest {
 protected:
  // Computes the loss on the device, and adds it to `metrics`.
  void Compute(const std::vector<float>& logits, const Batch& batch,
               int64_t classes, float scale) {
    const auto n = static_cast<int64_t>(batch.labels.size());
    const auto copy = [](auto span) {
      return std::vector(span.begin(), span.end());
    };
    TestVector<float> device_logits(logits);
    TestVector<int32_t> labels(copy(batch.labels));
    TestVector<int32_t> others(copy(batch.other_labels));
    TestVector<float> shares(copy(batch.shares));
    TestVector<double> losses(std::vector<double>(2 * n));
    TestVector<float> device_gradient{std::vector<float>(logits.size(), 99)};
    const bool mixed = !batch.shares.empty();
    ASSERT_THAT(SoftmaxCrossEntropyOnGpu(
                    {.n = n,
                     .classes = classes,
                     .logits = device_logits.data(),
                     .labels = labels.data(),
                     .other_labels = mixed ? others.data() : nullptr,
                     .shares = mixed ? shares.data() : nullptr,
                     .gradient_scale = scale,
                     .gradient = device_gradient.data(),
                     .sample_losses = losses.data()},
                    metrics_.data(), nullptr),
                IsOk());
    gradient_ = device_gradient.Read();
  }

  DeviceMetrics metrics() const { return metrics_.Read()[0]; }

  TestVector<DeviceMetrics> metrics_{{DeviceMetrics{}}};
  std::vector<float> gradient_;
};

struct Inputs {
  Inputs(int64_t n, int64_t classes) : logits(n * classes), labels(n) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, 5);
    for (float& x : logits) x = normal(random);
    for (int32_t& label : labels) {
      label = static_cast<int32_t>(random() % classes);
      others.push_back(static_cast<int32_t>(random() % classes));
      shares.push_back(static_cast<float>(random() % 17) / 16);
    }
  }

  std::vector<float> logits;
  std::vector<int32_t> labels, others;
  std::vector<float> shares;
};

// Both compute in float64, in other orders of additions.
TEST_F(LossTest, IsTheHostsLoss) {
  double loss_sum = 0;
  int64_t correct = 0, samples = 0;
  for (const int64_t classes : {1, 10, 300}) {
    for (const bool mixed : {false, true}) {
      const Inputs in(150, classes);
      Batch batch = {.images = {}, .labels = in.labels};
      if (mixed) {
        batch.other_labels = in.others;
        batch.shares = in.shares;
      }
      std::vector<float> gradient(in.logits.size());
      const Metrics want =
          SoftmaxCrossEntropy(in.logits, batch, classes, 0.25f, gradient);
      Compute(in.logits, batch, classes, 0.25f);
      loss_sum += want.loss_sum;
      correct += want.correct;
      samples += want.samples;
      EXPECT_NEAR(metrics().loss_sum, loss_sum, 1e-12 * loss_sum);
      EXPECT_EQ(metrics().correct, correct);
      EXPECT_EQ(metrics().samples, samples);
      for (size_t i = 0; i < gradient.size(); ++i) {
        EXPECT_NEAR(gradient_[i], gradient[i],
                    0x1p-24 * std::abs(gradient[i]) + 1e-14);
      }
    }
  }
}

// The highest logit wins, and of equal ones the first.
TEST_F(LossTest, CountsTiesAsTheHostDoes) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits = {1, 1, 0, 1, 1, 0, 0, kNan, 1, 0, 2, 2};
  const std::vector<int32_t> labels = {0, 1, 2, 1};
  const Batch batch = {.images = {}, .labels = labels};
  const Metrics want = SoftmaxCrossEntropy(logits, batch, 3, 1, {});
  Compute(logits, batch, 3, 1);
  EXPECT_EQ(metrics().correct, want.correct);
  EXPECT_EQ(metrics().correct, 2);
  EXPECT_TRUE(std::isnan(metrics().loss_sum));
}

TEST_F(LossTest, ALabelOutOfRangeGivesNan) {
  const std::vector<int32_t> labels = {3};
  Compute({1, 2, 3}, {.images = {}, .labels = labels}, 3, 1);
  EXPECT_TRUE(std::isnan(metrics().loss_sum));
  EXPECT_EQ(metrics().correct, 0);
}

}  // namespace
}  // namespace lockstep
