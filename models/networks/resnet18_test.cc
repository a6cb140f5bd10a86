// Against numbers computed by PyTorch: testdata/generate_resnet18_goldens.py
// wrote them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <istream>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <utility>
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

constexpr int64_t kSamples = 6;
constexpr int64_t kImageSize = 8;
constexpr float kLearningRate = 0.125f;

// The batch of the script, with which no input of ReLU comes so near zero that
// a rounding could take it across.
struct Samples {
  Samples() : images(kSamples * kImageSize * kImageSize), labels(kSamples) {
    for (int64_t i = 0; i < static_cast<int64_t>(images.size()); ++i) {
      images[i] = static_cast<float>((i * i + 109 * i) % 1009 - 500) / 512;
    }
    for (int64_t i = 0; i < kSamples; ++i) labels[i] = (i * 7 + 3) % 10;
  }
  Batch batch() const { return {images, labels}; }

  std::vector<float> images;
  std::vector<int32_t> labels;
};

struct Golden {
  std::string name;               // "reference", or a planted bug's.
  std::vector<GoldenStep> steps;  // Losses are means.
  double evaluation = 0;          // After the last; the reference's alone.
};

// These lines have the scale before the norm.
GoldenTensor ReadScaledTensor(std::istream& words) {
  const double scale = ReadNumber(words);
  GoldenTensor tensor = ReadGoldenTensor(words);
  tensor.scale = scale;
  return tensor;
}

std::vector<Golden> ReadGoldens() {
  std::ifstream file("models/networks/testdata/resnet18_golden.txt");
  std::vector<Golden> goldens;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, name;
    words >> kind;
    if (kind == "evaluation") goldens.back().evaluation = ReadNumber(words);
    if (kind == "torch" || kind == "evaluation") continue;
    words >> name;
    if (kind == "case") {
      goldens.emplace_back().name = name;
      continue;
    }
    std::vector<GoldenStep>& steps = goldens.back().steps;
    if (kind == "step") {
      steps.emplace_back().loss = std::strtod(name.c_str(), nullptr);
    } else if (kind == "gradient") {
      steps.back().gradients[name] = ReadScaledTensor(words);
    } else if (kind == "buffer") {
      steps.back().buffers[name] = ReadScaledTensor(words);
    } else {
      words >> steps.back().counters[name];
    }
  }
  return goldens;
}

// The model of the goldens: batch norm has other weights than 1 and 0.
std::unique_ptr<Model> ScatteredResNet18() {
  constexpr char kSuffix[] = ".running_mean";
  std::unique_ptr<Model> model = CreateResNet18(/*seed=*/0, kImageSize);
  Parameters& parameters = model->parameters();
  for (const BufferSpec& spec : model->buffers().specs()) {
    const size_t at = spec.name.find(kSuffix);
    if (at == std::string::npos) continue;
    const std::string name = spec.name.substr(0, at);
    const int index = IndexOf(parameters.specs(), name + ".weight");
    const auto weight = parameters.value(index);
    const auto bias = parameters.value(index + 1);
    for (int64_t i = 0; i < spec.size; ++i) {
      weight[i] = 1 + static_cast<float>((i * 7 + 3) % 11 - 5) / 32;
      bias[i] = static_cast<float>((i * 5 + 1) % 13 - 6) / 64;
    }
  }
  return model;
}

class ResNet18Test : public testing::Test {
 protected:
  // As a rank runs; more threads would spin on a busy machine.
  void SetUp() override { SetComputeThreads(1); }
};

// PyTorch's values are float64 ones of the same float32 weights, but for the
// few roundings of initialization.h. A float32 activation sums up to
// 512 * 9 = 4608 products, whose roundings, were they independent, would leave
// about sqrt(4608) * 2^-24 = 4e-6 of it; 18 layers forward and 18 backward
// leave sqrt(36) times that. Batch norm divides by the deviation of what it is
// given, so relative errors pass it as they are.
constexpr double kRelative = 6 * 4e-6;
// The update takes the gradients' errors into the weights, and six values per
// channel, which are all that the last stage has, do not average them out.
constexpr double kRelativeAfterUpdate = 4 * kRelative;

TEST_F(ResNet18Test, MatchesPyTorchForTwoStepsAndAnEvaluation) {
  const Golden golden = ReadGoldens().at(0);
  ASSERT_EQ(golden.name, "reference");
  ASSERT_EQ(golden.steps.size(), 2u);
  ASSERT_EQ(golden.steps[0].gradients.size(), 76u);
  for (const GoldenStep& step : golden.steps) {
    ASSERT_EQ(step.buffers.size(), 34u);
    ASSERT_EQ(step.counters.size(), 17u);
  }
  const std::unique_ptr<Model> model = ScatteredResNet18();
  ASSERT_EQ(model->parameters().count(), 76);
  ASSERT_EQ(model->buffers().count(), 51);
  const Samples samples;
  for (const GoldenStep& step : golden.steps) {
    const bool first = &step == &golden.steps[0];
    const double tolerance = first ? kRelative : kRelativeAfterUpdate;
    if (!first) {
      const std::span<float> values = model->parameters().values();
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] -= kLearningRate * model->parameters().gradients()[i];
      }
    }
    const absl::StatusOr<Metrics> metrics =
        model->ForwardBackward(samples.batch(), 1.0f / kSamples, [](int) {});
    ASSERT_THAT(metrics, IsOk());
    const Worst worst = Compare(step, metrics->loss_sum / kSamples, *model);
    EXPECT_TRUE(worst.value <= tolerance) << worst.what << " " << worst.value;
  }
  const std::vector<float> buffers(model->buffers().floats().begin(),
                                   model->buffers().floats().end());
  const absl::StatusOr<Metrics> metrics = model->Evaluate(samples.batch());
  ASSERT_THAT(metrics, IsOk());
  const double error =
      std::abs(metrics->loss_sum / kSamples - golden.evaluation) /
      golden.evaluation;
  EXPECT_TRUE(error <= kRelativeAfterUpdate) << error;
  EXPECT_TRUE(std::ranges::equal(buffers, model->buffers().floats()));
}

// The controls: PyTorch with a bug planted in the network is rejected.
TEST_F(ResNet18Test, GoldenRejectsPlantedBugs) {
  const std::vector<Golden> goldens = ReadGoldens();
  ASSERT_EQ(goldens.size(), 13u);
  const std::unique_ptr<Model> model = ScatteredResNet18();
  const absl::StatusOr<Metrics> metrics =
      model->ForwardBackward(Samples().batch(), 1.0f / kSamples, [](int) {});
  ASSERT_THAT(metrics, IsOk());
  const double loss = metrics->loss_sum / kSamples;
  EXPECT_TRUE(Compare(goldens[0].steps[0], loss, *model).value <= kRelative);
  for (size_t i = 1; i < goldens.size(); ++i) {
    const Worst worst = Compare(goldens[i].steps.at(0), loss, *model);
    EXPECT_GT(worst.value, 10 * kRelative) << goldens[i].name;
    RecordProperty(goldens[i].name, std::to_string(worst.value));
  }
  // And one NaN, wherever it is.
  model->parameters().gradient(0)[0] = std::nanf("");
  EXPECT_FALSE(Compare(goldens[0].steps[0], loss, *model).value <= kRelative);
}

struct GoldenWeights {
  std::string name;
  int64_t size = 0;
  double sum = 0;
  std::vector<double> ends;  // The first three numbers and the last three.
};

std::map<uint64_t, std::vector<GoldenWeights>> ReadGoldenWeights() {
  std::ifstream file("models/networks/testdata/resnet18_weights_golden.txt");
  std::map<uint64_t, std::vector<GoldenWeights>> by_seed;
  uint64_t seed = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "seed") words >> seed;
    if (kind != "parameter") continue;
    GoldenWeights& weights = by_seed[seed].emplace_back();
    words >> weights.name >> weights.size;
    weights.sum = ReadNumber(words);
    while (words >> std::ws && !words.eof()) {
      weights.ends.push_back(ReadNumber(words));
    }
  }
  return by_seed;
}

// The largest difference of one of the ends, and that of the sums, per element.
double WorstDifference(const GoldenWeights& golden,
                       std::span<const float> values) {
  double sum = 0;
  for (const float x : values) sum += x;
  Worst worst;
  worst.Include(
      "sum", std::abs(sum - golden.sum) / static_cast<double>(values.size()));
  for (size_t i = 0; i < golden.ends.size(); ++i) {
    const float x = i < 3 ? values[i] : values[values.size() - 6 + i];
    worst.Include("end", std::abs(x - golden.ends[i]));
  }
  return worst.value;
}

// initialization.h's bound on a normal number, times 0.01, and the rounding of
// that product.
constexpr double kNormalDifference = 0.01 * 0x1p-19 + 0.06 * 0x1p-24;

TEST_F(ResNet18Test, StartsWithPyTorchsWeights) {
  const auto goldens = ReadGoldenWeights();
  ASSERT_EQ(goldens.size(), 2u);
  for (const auto& [seed, golden] : goldens) {
    ASSERT_EQ(golden.size(), 76u);
    const std::unique_ptr<Model> model = CreateResNet18(seed, kImageSize);
    for (int i = 0; i < model->parameters().count(); ++i) {
      const ParameterSpec& spec = model->parameters().specs()[i];
      SCOPED_TRACE(spec.name);
      ASSERT_EQ(spec.name, golden[i].name);
      ASSERT_EQ(spec.size, golden[i].size);
      ASSERT_EQ(golden[i].ends.size(), 6u);
      // Biases and batch norm are exact but for the script's sum.
      const double tolerance = spec.shape.size() > 1 ? kNormalDifference : 0;
      const double difference =
          WorstDifference(golden[i], model->parameters().value(i));
      EXPECT_TRUE(difference <= tolerance + 0x1p-50) << difference;
    }
  }
}

// The controls: a generator one number out of step, or the weights of another
// layer.
TEST_F(ResNet18Test, GoldenWeightsRejectOtherWeights) {
  const std::vector<GoldenWeights> golden = ReadGoldenWeights().at(0);
  const std::unique_ptr<Model> model = CreateResNet18(0, kImageSize);
  const auto value = [&](const char* name) {
    const Parameters& parameters = model->parameters();
    return parameters.value(IndexOf(parameters.specs(), name));
  };
  const auto golden_of = [&](const char* name) {
    return golden[IndexOf(golden, name)];
  };
  const char kFirst[] = "resnet_block1.0.conv2.weight";
  const char kSecond[] = "resnet_block1.1.conv2.weight";
  EXPECT_TRUE(WorstDifference(golden_of(kFirst), value(kFirst)) <=
              kNormalDifference);
  EXPECT_GT(WorstDifference(golden_of(kFirst), value(kSecond)), 1e-3);
  std::vector<float> shifted(value(kFirst).begin() + 1, value(kFirst).end());
  shifted.push_back(value(kFirst)[0]);
  EXPECT_GT(WorstDifference(golden_of(kFirst), shifted), 1e-3);
  const char kBias[] = "resnet_block4.0.conv3.bias";
  EXPECT_GT(
      WorstDifference(golden_of(kBias), value("resnet_block4.0.conv2.bias")),
      1e-3);
}

TEST_F(ResNet18Test, NamesItsBuffersAsPyTorchDoes) {
  const std::unique_ptr<Model> model = CreateResNet18(0, kImageSize);
  const Buffers& buffers = model->buffers();
  std::vector<std::string> names;
  for (const BufferSpec& spec : buffers.specs()) names.push_back(spec.name);
  ASSERT_EQ(names.size(), 51u);
  const auto at = names.begin();
  EXPECT_THAT(
      std::vector<std::string>(at, at + 4),
      ElementsAre("1.running_mean", "1.running_var", "1.num_batches_tracked",
                  "resnet_block1.0.bn1.running_mean"));
  EXPECT_EQ(names[50], "resnet_block4.1.bn2.num_batches_tracked");
  for (int i = 0; i < buffers.count(); i += 3) {
    EXPECT_THAT(buffers.value(i), Each(0.0f));
    EXPECT_THAT(buffers.value(i + 1), Each(1.0f));
    EXPECT_EQ(buffers.counter(i + 2), 0);
  }
}

TEST_F(ResNet18Test, CallsReadyOnceForEachParameterWithItsFinalGradient) {
  const std::unique_ptr<Model> model = ScatteredResNet18();
  std::map<int, std::vector<float>> at_ready;
  ASSERT_THAT(model->ForwardBackward(
                  Samples().batch(), 1,
                  [&](int index) {
                    EXPECT_FALSE(at_ready.contains(index));
                    const auto now = model->parameters().gradient(index);
                    at_ready[index].assign(now.begin(), now.end());
                  }),
              IsOk());
  EXPECT_EQ(at_ready.size(), 76u);
  for (const auto& [index, gradient] : at_ready) {
    EXPECT_TRUE(
        std::ranges::equal(gradient, model->parameters().gradient(index)))
        << index;
  }
}

}  // namespace
}  // namespace lockstep
