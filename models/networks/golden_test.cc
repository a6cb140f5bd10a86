// Networks against numbers computed by PyTorch: the scripts in testdata/ wrote
// them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <istream>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/classifier.h"
#include "models/model.h"
#include "models/networks/networks.h"

namespace lockstep {
namespace {

constexpr int64_t kSamples = 6;  // Of resnet18, of so many pixels a side.
constexpr int64_t kImageSize = 8;
constexpr float kLearningRate = 0.125f;

// The next word as a number; operator>> does not read hexadecimal floats.
double ReadNumber(std::istream& words) {
  std::string word;
  words >> word;
  return std::strtod(word.c_str(), nullptr);
}

// The Euclidean norm.
double Norm(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * v;
  return std::sqrt(sum);
}

// The norm of a tensor and some of its elements.
struct GoldenTensor {
  double scale = 0;  // What the errors are measured by.
  double norm = 0;
  std::vector<std::pair<int64_t, double>> entries;
};

// Reads the rest of a line: the scale, if it is not the norm, the norm, then
// index and value of each entry.
GoldenTensor ReadTensor(std::istream& words, bool has_scale) {
  GoldenTensor tensor;
  tensor.scale = ReadNumber(words);
  tensor.norm = has_scale ? ReadNumber(words) : tensor.scale;
  for (int64_t at; words >> at;) {
    tensor.entries.emplace_back(at, ReadNumber(words));
  }
  return tensor;
}

// The gradients of a training step, and the buffers after it.
struct GoldenStep {
  double loss = 0;
  std::map<std::string, GoldenTensor> gradients, buffers;
  std::map<std::string, int64_t> counters;
};

// The largest error seen, and of what; the first NaN, if there is one.
struct Worst {
  void Include(const std::string& name, double error) {
    if (!std::isnan(value) && !(error <= value)) {
      value = error;
      what = name;
    }
  }
  void Include(const std::string& name, const GoldenTensor& want,
               std::span<const float> got) {
    Include(name, std::abs(Norm(got) - want.norm) / want.scale);
    for (const auto& [at, entry] : want.entries) {
      Include(name, std::abs(got[at] - entry) / want.scale);
    }
  }

  double value = 0;
  std::string what;
};

// Where `name` is in `specs`, of parameters or buffers; a failure if nowhere.
template <typename Specs>
int IndexOf(const Specs& specs, const std::string& name) {
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == name) return static_cast<int>(i);
  }
  ADD_FAILURE() << "nothing is named " << name;
  return 0;
}

// Compares the model after a step, and its loss, with what the golden step has.
// The loss's error is relative to it, a counter's is 1.
Worst Compare(const GoldenStep& golden, double loss, Model& model) {
  const Parameters& parameters = model.parameters();
  const Buffers& buffers = model.buffers();
  Worst worst;
  worst.Include("loss", std::abs(loss - golden.loss) / golden.loss);
  for (const auto& [name, want] : golden.gradients) {
    const int index = IndexOf(parameters.specs(), name);
    worst.Include(name, want, parameters.gradient(index));
  }
  for (const auto& [name, want] : golden.buffers) {
    const int index = IndexOf(buffers.specs(), name);
    worst.Include(name, want, buffers.value(index));
  }
  for (const auto& [name, want] : golden.counters) {
    const int index = IndexOf(buffers.specs(), name);
    worst.Include(name, buffers.counter(index) == want ? 0 : 1);
  }
  return worst;
}

// The batch of the scripts.
struct Samples {
  // resnet18's is one with which no input of ReLU comes so near zero that a
  // rounding could take it across.
  static Samples ForLeNet(int64_t n) {
    return Samples(n, 28 * 28, 31, 127, 40, 64);
  }
  static Samples ForResNet18() {
    return Samples(6, kImageSize * kImageSize, 109, 1009, 500, 512);
  }
  Batch batch() const { return {images, labels}; }

  std::vector<float> images;
  std::vector<int32_t> labels;

 private:
  Samples(int64_t n, int64_t pixels, int64_t factor, int64_t modulus,
          int64_t shift, float divisor)
      : images(n * pixels), labels(n) {
    for (int64_t i = 0; i < n * pixels; ++i) {
      images[i] =
          static_cast<float>((i * i + factor * i) % modulus - shift) / divisor;
    }
    for (int64_t i = 0; i < n; ++i) labels[i] = (i * 7 + 3) % 10;
  }
};

// How far the model's step on the samples is from the golden one; the loss is
// the sum over the samples divided by `divisor`.
Worst ErrorOf(Model& model, const Samples& samples, const GoldenStep& golden,
              int64_t divisor = 1) {
  const absl::StatusOr<Metrics> metrics = model.ForwardBackward(
      samples.batch(), 1.0f / static_cast<float>(divisor), [](int) {});
  EXPECT_THAT(metrics, IsOk());
  EXPECT_EQ(metrics->samples, std::ssize(samples.labels));
  return Compare(golden, metrics->loss_sum / static_cast<double>(divisor),
                 model);
}

// As a rank runs; more threads would spin on a busy machine.
class GoldenTest : public testing::Test {
 protected:
  void SetUp() override { SetComputeThreads(1); }
};
using LeNetGoldenTest = GoldenTest;
using ResNet18GoldenTest = GoldenTest;

struct Golden {
  std::string name;        // resnet18's: "reference", or a planted bug's.
  int64_t n = 0;           // The lenets': samples.
  float weight_scale = 0;  // Likewise.
  std::vector<GoldenStep> steps;
  double evaluation = 0;  // After the last; the reference's alone.
};

// What a file holds; nothing if it cannot be read.
std::vector<Golden> ReadGoldens(const std::string& file_name, bool has_scale) {
  std::ifstream file("models/networks/testdata/" + file_name);
  std::vector<Golden> goldens;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind, name;
    words >> kind;
    if (kind == "case") {
      words >> goldens.emplace_back().name;
    } else if (kind == "batch") {
      Golden& golden = goldens.emplace_back();
      words >> golden.n >> name >> golden.weight_scale >> name;
      golden.steps.emplace_back().loss = ReadNumber(words);
    } else if (kind == "step") {
      goldens.back().steps.emplace_back().loss = ReadNumber(words);
    } else if (kind == "evaluation") {
      goldens.back().evaluation = ReadNumber(words);
    } else if (kind != "torch") {
      GoldenStep& step = goldens.back().steps.back();
      words >> name;
      if (kind == "counter") {
        words >> step.counters[name];
      } else {
        auto& tensors = kind == "gradient" ? step.gradients : step.buffers;
        tensors[name] = ReadTensor(words, has_scale);
      }
    }
  }
  return goldens;
}

std::vector<Golden> LeNetGoldens(const std::string& file_name) {
  return ReadGoldens(file_name, /*has_scale=*/false);
}
std::vector<Golden> ResNetGoldens() {
  return ReadGoldens("resnet18_golden.txt", /*has_scale=*/true);
}

// PyTorch's values are float64 ones of the same float32 weights, but for the
// few roundings of networks.h. A float32 gradient here sums up to
// 17 * 26 * 26 = 11492 products, whose roundings, were they independent, would
// leave about sqrt(11492) * 2^-24 = 6e-6 of the norm; four layers of them.
constexpr double kLeNetTolerance = 4 * 6e-6;

// Initial weights times `scale`: the larger, the larger are the gradients of
// the first layers.
std::unique_ptr<Model> ScaledLeNet(float scale) {
  std::unique_ptr<Model> model = CreateLeNet(0);
  for (float& x : model->parameters().values()) x *= scale;
  return model;
}

TEST_F(LeNetGoldenTest, MatchesPyTorch) {
  const std::vector<Golden> goldens = LeNetGoldens("lenet_golden.txt");
  ASSERT_EQ(goldens.size(), 2u);
  for (const Golden& golden : goldens) {
    ASSERT_EQ(golden.steps[0].gradients.size(), 8u);
    for (const auto& [name, gradient] : golden.steps[0].gradients) {
      ASSERT_GT(gradient.norm, 0) << name;
      ASSERT_EQ(gradient.entries.size(), 10u) << name;
    }
    const Worst worst = ErrorOf(*ScaledLeNet(golden.weight_scale),
                                Samples::ForLeNet(golden.n), golden.steps[0]);
    EXPECT_TRUE(worst.value <= kLeNetTolerance)
        << worst.what << " " << worst.value;
  }
}

// The controls: one sample's label, one weight, or a NaN, and the check fails.
TEST_F(LeNetGoldenTest, GoldenRejectsSmallFaults) {
  const Golden golden = LeNetGoldens("lenet_golden.txt").at(1);
  std::unique_ptr<Model> model = ScaledLeNet(golden.weight_scale);
  Samples samples = Samples::ForLeNet(golden.n);
  const auto passes = [&] {
    return ErrorOf(*model, samples, golden.steps[0]).value <= kLeNetTolerance;
  };
  EXPECT_TRUE(passes());
  model->parameters().value(0)[0] *= 1.1f;
  EXPECT_FALSE(passes());
  model = ScaledLeNet(golden.weight_scale);
  samples.labels[16] = 0;
  EXPECT_FALSE(passes());
  model->parameters().value(7)[0] = std::nanf("");
  EXPECT_FALSE(passes());
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

// The controls are one weight of a norm, or one running mean.
TEST_F(LeNetGoldenTest,
       WithBatchNormMatchesPyTorchAndGoldenRejectsSmallFaults) {
  const std::vector<Golden> goldens = LeNetGoldens("lenet_bn_golden.txt");
  ASSERT_EQ(goldens.size(), 1u);
  const Golden& golden = goldens[0];
  ASSERT_EQ(golden.steps[0].gradients.size(), 9u);
  ASSERT_EQ(golden.steps[0].buffers.size(), 4u);
  // The error of a step whose model `change` has changed before.
  const auto error = [&](void (*change)(Model&)) {
    const std::unique_ptr<Model> model = GoldenLeNet(golden.weight_scale);
    change(*model);
    return ErrorOf(*model, Samples::ForLeNet(golden.n), golden.steps[0]).value;
  };
  EXPECT_LE(error([](Model&) {}), kLeNetTolerance);
  EXPECT_GT(
      error([](Model& model) { model.parameters().value(2)[19] *= 1.1f; }),
      kLeNetTolerance);
  EXPECT_GT(error([](Model& model) { model.buffers().value(0)[0] += 0.1f; }),
            kLeNetTolerance);
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

// PyTorch's values are float64 ones of the same float32 weights, but for the
// few roundings of networks.h. A float32 activation sums up to
// 512 * 9 = 4608 products, whose roundings, were they independent, would leave
// about sqrt(4608) * 2^-24 = 4e-6 of it; 18 layers forward and 18 backward
// leave sqrt(36) times that. Batch norm divides by the deviation of what it is
// given, so relative errors pass it as they are.
constexpr double kRelative = 6 * 4e-6;
// The update takes the gradients' errors into the weights, and six values per
// channel, which are all that the last stage has, do not average them out.
constexpr double kRelativeAfterUpdate = 4 * kRelative;

TEST_F(ResNet18GoldenTest, MatchesPyTorchForTwoStepsAndAnEvaluation) {
  const Golden golden = ResNetGoldens().at(0);
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
  const Samples samples = Samples::ForResNet18();
  for (const GoldenStep& step : golden.steps) {
    const bool first = &step == &golden.steps[0];
    const double tolerance = first ? kRelative : kRelativeAfterUpdate;
    if (!first) {
      const std::span<float> values = model->parameters().values();
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] -= kLearningRate * model->parameters().gradients()[i];
      }
    }
    const Worst worst = ErrorOf(*model, samples, step, kSamples);
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
TEST_F(ResNet18GoldenTest, GoldenRejectsPlantedBugs) {
  const std::vector<Golden> goldens = ResNetGoldens();
  ASSERT_EQ(goldens.size(), 13u);
  const std::unique_ptr<Model> model = ScatteredResNet18();
  const absl::StatusOr<Metrics> metrics = model->ForwardBackward(
      Samples::ForResNet18().batch(), 1.0f / kSamples, [](int) {});
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

// networks.h's bound on a normal number, times 0.01, and the rounding of
// that product.
constexpr double kNormalDifference = 0.01 * 0x1p-19 + 0.06 * 0x1p-24;

TEST_F(ResNet18GoldenTest, StartsWithPyTorchsWeights) {
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
TEST_F(ResNet18GoldenTest, GoldenWeightsRejectOtherWeights) {
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
  const char kBias[] = "resnet_block4.0.conv3.bias";
  EXPECT_TRUE(WorstDifference(golden_of(kFirst), value(kFirst)) <=
              kNormalDifference);
  std::vector<float> shifted(value(kFirst).begin() + 1, value(kFirst).end());
  shifted.push_back(value(kFirst)[0]);
  for (const auto& [name, other] :
       {std::pair<const char*, std::span<const float>>(kFirst, shifted),
        {kFirst, value("resnet_block1.1.conv2.weight")},
        {kBias, value("resnet_block4.0.conv2.bias")}}) {
    EXPECT_GT(WorstDifference(golden_of(name), other), 1e-3);
  }
}

}  // namespace
}  // namespace lockstep
