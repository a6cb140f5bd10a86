// Against numbers computed by PyTorch: testdata/generate_goldens.py wrote them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/classifier.h"
#include "models/model.h"
#include "models/networks/golden.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kPixels = 28 * 28;

// The batch of the script.
struct Samples {
  explicit Samples(int64_t n) : images(n * kPixels), labels(n) {
    for (int64_t i = 0; i < n * kPixels; ++i) {
      images[i] = static_cast<float>((i * i + 31 * i) % 127 - 40) / 64;
    }
    for (int64_t i = 0; i < n; ++i) labels[i] = (i * 7 + 3) % 10;
  }
  Batch batch() const { return {images, labels}; }
  Batch sample(int64_t i) const {
    return {std::span(images).subspan(i * kPixels, kPixels),
            std::span(labels).subspan(i, 1)};
  }

  std::vector<float> images;
  std::vector<int32_t> labels;
};

struct Golden {
  int64_t n = 0;
  float weight_scale = 0;
  GoldenStep step;
};

// The batches of a file that the script wrote; empty if it cannot be read.
std::vector<Golden> ReadGoldens(const std::string& name) {
  std::ifstream file("models/networks/testdata/" + name);
  std::vector<Golden> goldens;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "batch") {
      Golden& golden = goldens.emplace_back();
      words >> golden.n >> word >> golden.weight_scale >> word;
      golden.step.loss = ReadNumber(words);
    } else if (word == "gradient" || word == "buffer") {
      GoldenStep& step = goldens.back().step;
      auto& tensors = word == "gradient" ? step.gradients : step.buffers;
      words >> word;
      tensors[word] = ReadGoldenTensor(words);
    }
  }
  return goldens;
}

// PyTorch's values are float64 ones of the same float32 weights, but for the
// few roundings of initialization.h. A float32 gradient here sums up to
// 17 * 26 * 26 = 11492 products, whose roundings, were they independent, would
// leave about sqrt(11492) * 2^-24 = 6e-6 of the norm; four layers of them.
constexpr double kGoldenTolerance = 4 * 6e-6;

// Initial weights times `scale`: the larger, the larger are the gradients of
// the first layers.
std::unique_ptr<Model> ScaledLeNet(float scale) {
  std::unique_ptr<Model> model = CreateLeNet(0);
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

class LeNetTest : public testing::Test {
 protected:
  // As a rank runs; more threads would spin on a busy machine.
  void SetUp() override { SetComputeThreads(1); }
};

TEST_F(LeNetTest, MatchesPyTorch) {
  const std::vector<Golden> goldens = ReadGoldens("lenet_golden.txt");
  ASSERT_EQ(goldens.size(), 2u);
  for (const Golden& golden : goldens) {
    ASSERT_EQ(golden.step.gradients.size(), 8u);
    for (const auto& [name, gradient] : golden.step.gradients) {
      ASSERT_GT(gradient.norm, 0) << name;
      ASSERT_EQ(gradient.entries.size(), 10u) << name;
    }
    const std::unique_ptr<Model> model = ScaledLeNet(golden.weight_scale);
    const Samples samples(golden.n);
    const absl::StatusOr<Metrics> metrics =
        model->ForwardBackward(samples.batch(), 1, [](int) {});
    ASSERT_THAT(metrics, IsOk());
    EXPECT_EQ(metrics->samples, golden.n);
    const Worst worst = Compare(golden.step, metrics->loss_sum, *model);
    EXPECT_TRUE(worst.value <= kGoldenTolerance)
        << worst.what << " " << worst.value;
  }
}

// The controls: one sample's label, one weight, or a NaN, and the check fails.
TEST_F(LeNetTest, GoldenRejectsSmallFaults) {
  const Golden golden = ReadGoldens("lenet_golden.txt").at(1);
  const auto error = [&](Model& model, const Samples& samples) {
    const absl::StatusOr<Metrics> metrics =
        model.ForwardBackward(samples.batch(), 1, [](int) {});
    EXPECT_THAT(metrics, IsOk());
    return Compare(golden.step, metrics->loss_sum, model).value;
  };
  std::unique_ptr<Model> model = ScaledLeNet(golden.weight_scale);
  Samples samples(golden.n);
  EXPECT_TRUE(error(*model, samples) <= kGoldenTolerance);
  model->parameters().value(0)[0] *= 1.1f;
  EXPECT_FALSE(error(*model, samples) <= kGoldenTolerance);
  model = ScaledLeNet(golden.weight_scale);
  samples.labels[16] = 0;
  EXPECT_FALSE(error(*model, samples) <= kGoldenTolerance);
  model->parameters().value(7)[0] = std::nanf("");
  EXPECT_FALSE(error(*model, samples) <= kGoldenTolerance);
}

TEST_F(LeNetTest, HasTheSeedsParameters) {
  const std::unique_ptr<Model> model = CreateLeNet(0);
  const Parameters& parameters = model->parameters();
  std::vector<std::string> names;
  for (const ParameterSpec& spec : parameters.specs()) {
    names.push_back(spec.name);
  }
  EXPECT_THAT(names,
              ElementsAre("W1", "b1", "W2", "b2", "W3", "b3", "W4", "b4"));
  EXPECT_THAT(parameters.specs()[2].shape, ElementsAre(50, 20, 5, 5));
  EXPECT_THAT(parameters.specs()[4].shape, ElementsAre(800, 128));
  for (const int weights : {0, 2, 4, 6}) {
    const std::span<const float> w = parameters.value(weights);
    // Of 180 numbers or more: five standard deviations of the mean square.
    const double size = static_cast<double>(w.size());
    EXPECT_NEAR(Norm(w) * Norm(w) / size, 1e-4, 5e-4 * std::sqrt(2 / size));
    EXPECT_THAT(parameters.value(weights + 1), Each(0.0f));
  }
}

// Sums over samples, whatever the batch they come in.
TEST_F(LeNetTest, GradientOfABatchIsTheSumOverItsSamples) {
  for (const int64_t n : {1, 3, 17}) {
    SCOPED_TRACE(n);
    const Samples samples(n);
    const std::unique_ptr<Model> model = ScaledLeNet(8);
    std::vector<double> sum(model->parameters().gradients().size());
    Metrics metrics;
    for (int64_t i = 0; i < n; ++i) {
      const absl::StatusOr<Metrics> one =
          model->ForwardBackward(samples.sample(i), 1, [](int) {});
      ASSERT_THAT(one, IsOk());
      metrics += *one;
      for (size_t k = 0; k < sum.size(); ++k) {
        sum[k] += model->parameters().gradients()[k];
      }
    }
    const absl::StatusOr<Metrics> all =
        model->ForwardBackward(samples.batch(), 1, [](int) {});
    ASSERT_THAT(all, IsOk());
    EXPECT_EQ(all->samples, n);
    EXPECT_EQ(all->correct, metrics.correct);
    EXPECT_NEAR(all->loss_sum, metrics.loss_sum,
                kGoldenTolerance * all->loss_sum);
    for (int i = 0; i < model->parameters().count(); ++i) {
      const ParameterSpec& spec = model->parameters().specs()[i];
      const std::span<const float> got = model->parameters().gradient(i);
      const double norm = Norm(got);
      ASSERT_GT(norm, 0.1);  // Else zeros would pass.
      Worst worst;
      for (int64_t k = 0; k < spec.size; ++k) {
        worst.Include(spec.name, std::abs(got[k] - sum[spec.offset + k]));
      }
      EXPECT_TRUE(worst.value <= kGoldenTolerance * norm)
          << worst.what << " " << worst.value;
    }
  }
}

TEST_F(LeNetTest, EvaluateGivesTheMetricsOfForwardBackward) {
  const Samples samples(17);
  const std::unique_ptr<Model> model = ScaledLeNet(8);
  const absl::StatusOr<Metrics> trained =
      model->ForwardBackward(samples.batch(), 1, [](int) {});
  const std::vector<float> gradients(model->parameters().gradients().begin(),
                                     model->parameters().gradients().end());
  const absl::StatusOr<Metrics> evaluated = model->Evaluate(samples.batch());
  ASSERT_THAT(trained, IsOk());
  ASSERT_THAT(evaluated, IsOk());
  EXPECT_EQ(evaluated->loss_sum, trained->loss_sum);
  EXPECT_EQ(evaluated->correct, trained->correct);
  EXPECT_EQ(evaluated->samples, 17);
  EXPECT_TRUE(std::ranges::equal(gradients, model->parameters().gradients()));
}

// Powers of two only move exponents, so the scale shows exactly.
TEST_F(LeNetTest, ScalesGradients) {
  const Samples samples(3);
  const std::unique_ptr<Model> model = ScaledLeNet(8);
  std::vector<float> want = Gradients(*model, samples.batch());
  for (float& g : want) g /= 4;
  EXPECT_EQ(Gradients(*model, samples.batch(), 0.25f), want);
}

TEST_F(LeNetTest, CallsReadyFromLastToFirstWithFinalGradients) {
  const std::unique_ptr<Model> model = ScaledLeNet(8);
  for (const int64_t n : {0, 1, 17}) {
    SCOPED_TRACE(n);
    const Samples samples(n);
    std::vector<int> order;
    std::map<int, std::vector<float>> at_ready;
    ASSERT_THAT(model->ForwardBackward(
                    samples.batch(), 1,
                    [&](int index) {
                      order.push_back(index);
                      const auto now = model->parameters().gradient(index);
                      at_ready[index].assign(now.begin(), now.end());
                    }),
                IsOk());
    EXPECT_THAT(order, ElementsAre(7, 6, 5, 4, 3, 2, 1, 0));
    for (const auto& [index, gradient] : at_ready) {
      EXPECT_TRUE(
          std::ranges::equal(gradient, model->parameters().gradient(index)))
          << index;
    }
  }
}

TEST_F(LeNetTest, EmptyBatchGivesZeroGradients) {
  const std::unique_ptr<Model> model = CreateLeNet(0);
  Gradients(*model, Samples(3).batch());
  EXPECT_THAT(Gradients(*model, Samples(0).batch()), Each(0.0f));
  const absl::StatusOr<Metrics> metrics = model->Evaluate(Batch());
  ASSERT_THAT(metrics, IsOk());
  EXPECT_EQ(metrics->samples, 0);
  EXPECT_EQ(metrics->loss_sum, 0);
}

// More sizes than plans are kept, with the first again at the end.
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

TEST_F(LeNetTest, TwoThreadsGiveTheBitsOfOne) {
  const Samples samples(17);
  const auto run = [&](std::vector<float>& out) {
    SetComputeThreads(1);
    const std::unique_ptr<Model> model = ScaledLeNet(8);
    for (int i = 0; i < 3; ++i) out = Gradients(*model, samples.batch());
  };
  std::vector<float> alone, first, second;
  std::thread(run, std::ref(alone)).join();
  std::thread a(run, std::ref(first)), b(run, std::ref(second));
  a.join();
  b.join();
  ASSERT_GT(Norm(alone), 1);
  EXPECT_EQ(first, alone);
  EXPECT_EQ(second, alone);
}

TEST_F(LeNetTest, NamesWhatIsWrongWithABatch) {
  const std::unique_ptr<Model> model = CreateLeNet(0);
  Samples samples(3);
  const auto both = [&](const Batch& batch, const std::string& what) {
    const auto matches =
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
    EXPECT_THAT(model->Evaluate(batch), matches);
    EXPECT_THAT(model->ForwardBackward(batch, 1, [](int) { FAIL(); }), matches);
  };
  both({std::span(samples.images).first(2351), samples.labels},
       "2351 floats of images for 3 labels");
  both({samples.images, {}}, "2352 floats of images for 0 labels");
  samples.labels[1] = 10;
  both(samples.batch(), "label 10 of sample 1 is not in [0, 10)");
  samples.labels[1] = -1;
  both(samples.batch(), "label -1 of sample 1");
  samples.labels[1] = 9;
  EXPECT_THAT(model->Evaluate(samples.batch()), IsOk());
}

// The weights of the script.
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

class LeNetBatchNormTest : public LeNetTest {
 protected:
  // The error of a step whose model `change` has changed before.
  template <typename Change>
  double ErrorAfter(Change change) {
    const std::vector<Golden> goldens = ReadGoldens("lenet_bn_golden.txt");
    EXPECT_EQ(goldens.size(), 1u);
    if (goldens.empty()) return NAN;
    const Golden& golden = goldens[0];
    EXPECT_EQ(golden.step.gradients.size(), 9u);
    EXPECT_EQ(golden.step.buffers.size(), 4u);
    const std::unique_ptr<Model> model = GoldenLeNet(golden.weight_scale);
    change(*model);
    const auto metrics =
        model->ForwardBackward(Samples(golden.n).batch(), 1, [](int) {});
    EXPECT_THAT(metrics, IsOk());
    if (!metrics.ok()) return NAN;
    return Compare(golden.step, metrics->loss_sum, *model).value;
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
