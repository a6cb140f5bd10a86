// The reference equals PyTorch in float64, and its gradients are the slopes of
// its loss.
#include "conformance/network/resnet_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/data_types.h"
#include "conformance/checks.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_run.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "models/networks/networks.h"

namespace lockstep::conformance {
namespace {

double Number(const std::string& hex) {
  return std::strtod(hex.c_str(), nullptr);
}

// float64 in two implementations: each sum of n terms is within n * 2^-53 of
// the sum of magnitudes in both, at most 4608 terms in each of 18 layers, and
// batch norm divides by deviations that are some tenths of the means: 1e-10 of
// a tensor's norm is a hundred times what is seen.
constexpr double kFloat64 = 1e-10;

class GoldenTest : public testing::Test {
 protected:
  GoldenTest()
      : parameters_(Widened(NetworkParameters(1, kResNet))),
        running_(Widened(NetworkRunning(1, kResNet))),
        samples_(NetworkBatch(1, 8)),
        file_("conformance/network/testdata/resnet_golden.txt") {}

  // The number behind `key` on the next line that starts with it.
  double Value(const std::string& key) {
    for (std::string line; std::getline(file_, line);) {
      std::istringstream words(line);
      std::string first, value;
      words >> first >> value;
      if (first == key) return Number(value);
    }
    ADD_FAILURE() << "no line " << key;
    return 0;
  }

  // Compares tensor i of `specs` in `got` with the file's next line. `least`:
  // of the norm that errors are a fraction of.
  void ExpectNext(const std::string& kind, const ParameterSpec& spec,
                  const std::vector<double>& got, double least) {
    std::string line, kind_there, name, word;
    ASSERT_TRUE(std::getline(file_, line));
    std::istringstream words(line);
    words >> kind_there >> name >> word;
    ASSERT_EQ(kind_there, kind);
    ASSERT_EQ(name, spec.name);
    const double want_norm = Number(word);
    const double tolerance = kFloat64 * std::max(want_norm, least);
    const double norm = TensorNorms({&spec, 1}, got)[0];
    EXPECT_NEAR(norm, want_norm, tolerance) << spec.name;
    int places = 0;
    for (int64_t place; words >> place >> word; ++places) {
      EXPECT_NEAR(got[spec.offset + place], Number(word), tolerance)
          << spec.name << "[" << place << "]";
    }
    ASSERT_EQ(places, 10);
  }

  const std::vector<double> parameters_, running_;
  const Samples samples_;
  std::ifstream file_;
};

TEST_F(GoldenTest, IsPyTorchInFloat64) {
  const ResNetReference<double> evaluation(parameters_, running_, samples_,
                                           /*training=*/false);
  const double want = Value("evaluation");
  EXPECT_NEAR(evaluation.loss_sum, want, kFloat64 * want);
  EXPECT_EQ(evaluation.running, running_);
  const ResNetReference<double> training(parameters_, running_, samples_,
                                         /*training=*/true);
  const double loss = Value("training");
  EXPECT_NEAR(training.loss_sum, loss, kFloat64 * loss);
  ASSERT_GT(std::abs(loss - want), 0.01);
  const std::vector<double> gradient = training.Gradient(1.0 / 8);
  for (const ParameterSpec& spec : ResNetParameterSpecs()) {
    ExpectNext("gradient", spec, gradient, /*least=*/1e-3);
  }
  for (const ParameterSpec& spec : ResNetBufferSpecs()) {
    ExpectNext("running", spec, training.running, /*least=*/0);
  }
}

// The model under test has these tensors, in these places.
TEST(ResNetReferenceTest, NamesAndShapesAreTheModels) {
  for (const int64_t width : {kResNet, kNarrowResNet}) {
    const auto model = CreateResNet18(/*seed=*/0, kNetworkSide, width);
    const auto& parameters = model->parameters().specs();
    const auto& want = ResNetParameterSpecs(width);
    ASSERT_EQ(parameters.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(parameters[i].name, want[i].name);
      EXPECT_EQ(parameters[i].shape, want[i].shape) << want[i].name;
      EXPECT_EQ(parameters[i].offset, want[i].offset) << want[i].name;
    }
    size_t next = 0;
    for (const BufferSpec& buffer : model->buffers().specs()) {
      if (buffer.type == DataType::kInt64) continue;
      ASSERT_LT(next, ResNetBufferSpecs(width).size());
      const ParameterSpec& spec = ResNetBufferSpecs(width)[next++];
      EXPECT_EQ(buffer.name, spec.name);
      EXPECT_EQ(buffer.shape, spec.shape) << spec.name;
      EXPECT_EQ(buffer.offset, spec.offset) << spec.name;
    }
    EXPECT_EQ(next, ResNetBufferSpecs(width).size());
  }
}

// A direction of norm 1 in one tensor: half along the gradient, so that the
// slope is not small, half at random, so that it is about every element.
std::vector<double> Direction(const ParameterSpec& spec,
                              const std::vector<double>& gradient,
                              std::mt19937& random) {
  std::vector<double> direction(spec.size);
  const double norm = TensorNorms({&spec, 1}, gradient)[0];
  const double step = 1 / std::sqrt(2.0 * static_cast<double>(spec.size));
  for (int64_t i = 0; i < spec.size; ++i) {
    const double along = gradient[spec.offset + i] / norm / std::sqrt(2.0);
    direction[i] = along + (random() % 2 == 0 ? step : -step);
  }
  return direction;
}

double LossAt(std::vector<double>& parameters, const ParameterSpec& spec,
              const std::vector<double>& direction, double step,
              const Samples& samples) {
  for (int64_t i = 0; i < spec.size; ++i) {
    parameters[spec.offset + i] += step * direction[i];
  }
  const double loss =
      ResNetReference<double>(parameters, Widened(NetworkRunning(1)), samples,
                              /*training=*/true)
          .loss_sum;
  for (int64_t i = 0; i < spec.size; ++i) {
    parameters[spec.offset + i] -= step * direction[i];
  }
  return loss;
}

// Central differences. The loss, about 5, is rounded by 1e-15, which over
// 2 * kStep makes 1e-9; its third derivative adds kStep^2 times it; and where
// the step leads a ReLU's input through zero, one pixel's part of a gradient
// comes or goes halfway.
TEST(ResNetReferenceTest, GradientIsTheSlopeOfTheLoss) {
  constexpr double kStep = 1e-6;
  std::vector<double> parameters = Widened(NetworkParameters(1));
  const Samples samples = NetworkBatch(17, 2);
  const std::vector<double> gradient =
      ResNetReference<double>(parameters, Widened(NetworkRunning(1)), samples,
                              /*training=*/true)
          .Gradient(1);
  std::mt19937 random(1);
  int compared = 0;
  for (const ParameterSpec& spec : NetworkSpecs()) {
    // Every kind: the stem, a block with a projection, the head.
    const bool chosen = !absl::StartsWith(spec.name, "resnet_block") ||
                        absl::StartsWith(spec.name, "resnet_block3.0");
    if (!chosen || HasZeroGradient(spec)) continue;
    const std::vector<double> direction = Direction(spec, gradient, random);
    double want = 0;
    for (int64_t i = 0; i < spec.size; ++i) {
      want += gradient[spec.offset + i] * direction[i];
    }
    const double up = LossAt(parameters, spec, direction, kStep, samples);
    const double down = LossAt(parameters, spec, direction, -kStep, samples);
    ASSERT_GT(std::abs(want), 1e-4) << spec.name;
    EXPECT_NEAR((up - down) / (2 * kStep), want, 1e-8 + 1e-4 * std::abs(want))
        << spec.name;
    ++compared;
  }
  EXPECT_EQ(compared, 13);
}

}  // namespace
}  // namespace lockstep::conformance
