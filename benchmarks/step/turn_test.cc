// Tests the comparison of first steps, its tolerance, and answers.
#include "benchmarks/step/turn.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/step/settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/algorithm.h"
#include "models/cuda/precision.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/reference/winograd.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::HasSubstr;

// Returns LeNet's gradients. Each has norm 1, but b1's is only rounding.
FirstStep ExampleStep(const Network& network) {
  FirstStep step = {.loss = 2.25};
  for (const TensorDescription& parameter : network.parameters()) {
    int64_t size = 1;
    for (const int64_t extent : parameter.shape) size *= extent;
    step.gradients.emplace_back(
        size,
        parameter.name == "b1"
            ? 1e-9f
            : static_cast<float>(1 / std::sqrt(static_cast<double>(size))));
  }
  return step;
}

TEST(CompareFirstStepsTest, AcceptsRoundingAndNamesWhatIsWrong) {
  const Network network = *CreateNetwork("lenet");
  const StepTolerance tolerance =
      ToleranceOf(network, {.spec = "lenet", .batch = 8});
  EXPECT_LT(tolerance.gradient, 0.05);
  const FirstStep ours = ExampleStep(network);
  const auto compare = [&](const FirstStep& theirs) {
    return CompareFirstSteps(network, ours, theirs, tolerance).status();
  };
  FirstStep rounded = ours;
  rounded.gradients[0][0] *= 1 + 1e-5f;
  rounded.gradients[1][0] = -1e-9f;  // b1's gradient, with the other sign.
  rounded.loss += 1e-6;
  EXPECT_THAT(compare(rounded), IsOk());
  const auto wrong = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(what));
  };
  FirstStep other = ours;
  other.loss = 2.26;
  EXPECT_THAT(compare(other), wrong("the loss of the first step is 2.26"));
  other.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(compare(other), wrong("the loss"));
  for (const float bad :
       {1.1f, 0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t parameter : {0, 5}) {  // W1 and b3.
      other = ours;
      for (float& value : other.gradients[parameter]) value *= bad;
      EXPECT_THAT(compare(other),
                  wrong(absl::StrCat("the gradient of ",
                                     network.parameters()[parameter].name)))
          << bad;
    }
  }
}

// Returns uniform random numbers of mean 0.
std::vector<double> RandomNumbers(int64_t count, uint64_t seed) {
  const uint64_t key = UniformKey(seed, /*number=*/0);
  std::vector<double> numbers;
  for (int64_t i = 0; i < count; ++i) {
    // The numbers are exact in float32.
    numbers.push_back(static_cast<float>(Uniform(key, i)));
  }
  return numbers;
}

// Returns the Winograd convolution of random images, computed in T.
template <typename T>
std::vector<T> ConvolveByWinograd(int64_t channels) {
  const Shape shape = {.n = 2, .c = channels, .h = 16, .w = 16};
  const auto in_t = [](const std::vector<double>& x) {
    return std::vector<T>(x.begin(), x.end());
  };
  reference::Plane<T> x(shape);
  x.v = in_t(RandomNumbers(shape.size(), /*seed=*/1));
  const std::vector<T> weight = in_t(RandomNumbers(8 * channels * 9, 2));
  return reference::WinogradProducts<T>(/*padding=*/1, channels, /*out=*/8,
                                        /*magnitudes=*/false)
      .Forward(x, weight, {}, {.n = 2, .c = 8, .h = 16, .w = 16})
      .v;
}

// WinogradError assumes that each rounding errs by a whole unit of the whole
// sum. Most roundings err less, so the measured error is about a third of
// WinogradError.
TEST(ToleranceOfTest, AllowsWhatWinogradErrsBy) {
  for (const int64_t channels : {32, 128}) {
    const std::vector<double> exact = ConvolveByWinograd<double>(channels);
    const std::vector<float> single = ConvolveByWinograd<float>(channels);
    double error = 0, size = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      error += std::pow(single[i] - exact[i], 2);
      size += std::pow(exact[i], 2);
    }
    const double units = std::sqrt(error / size) / 0x1p-24;
    EXPECT_LT(units, reference::WinogradError(channels));
    EXPECT_GT(units, reference::WinogradError(channels) / 6);
  }
  // The limit of the ratio to the error of direct convolution.
  EXPECT_NEAR(reference::WinogradError(1 << 30) / std::sqrt(9.0 * (1 << 30)),
              1.593, 1e-3);
}

TEST(ToleranceOfTest, GrowsIfOneOfOursUsesWinograd) {
  const Network network = *CreateNetwork("resnet18_d2l");
  StepCase one = {.spec = "resnet18_d2l",
                  .batch = 16,
                  .convolutions = {ConvolutionAlgorithm::kDirect}};
  const StepTolerance direct = ToleranceOf(network, one);
  one.convolutions.push_back(ConvolutionAlgorithm::kAuto);
  const StepTolerance both = ToleranceOf(network, one);
  if (CheckConvolutionAlgorithm(ConvolutionAlgorithm::kWinograd).ok()) {
    EXPECT_GT(both.gradient, direct.gradient);
    // The longest sums are those of weight gradients, over 16 images of 28x28.
    EXPECT_NEAR(
        both.loss / direct.loss,
        reference::WinogradError(16 * 7 * 7) / std::sqrt(16.0 * 28 * 28), 1e-9);
  } else {
    EXPECT_EQ(both.gradient, direct.gradient);
  }
  // In bfloat16 all convolutions are direct.
  one.precision = ConvolutionPrecision::kBFloat16;
  const double half = ToleranceOf(network, one).gradient;
  one.convolutions = {ConvolutionAlgorithm::kDirect};
  EXPECT_EQ(ToleranceOf(network, one).gradient, half);
}

TEST(ParseChosenTest, ReadsWhatChosenTextWrote) {
  const ChosenAlgorithms chosen = {
      .layout = "nchw16c",
      .operations = {"winograd, direct", "", "products of matrices", ""}};
  const std::string text = ChosenText(chosen);
  EXPECT_EQ(text, "chosen nchw16c;winograd, direct;;products of matrices;");
  const absl::StatusOr<ChosenAlgorithms> read = ParseChosen(text, 4);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->layout, chosen.layout);
  EXPECT_EQ(read->operations, chosen.operations);
  EXPECT_THAT(ParseChosen("cannot because", 4),
              StatusIs(absl::StatusCode::kFailedPrecondition, "because"));
  for (const std::string& answer :
       {text + ";", std::string("chosen nhwc"), std::string("chosen ;;;;"),
        std::string("layers 1"), std::string()}) {
    EXPECT_THAT(ParseChosen(answer, 4), StatusIs(absl::StatusCode::kInternal,
                                                 HasSubstr("unknown form")));
  }
}

TEST(ParseNumbersTest, TakesNumbersAndReasons) {
  EXPECT_THAT(ParseNumbers("timed 0.5 1e-3", "timed", 1),
              IsOkAndHolds(std::vector<double>{0.5, 1e-3}));
  EXPECT_THAT(ParseNumbers("cannot because", "timed", 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, "because"));
  for (const char* answer : {"timed", "timed x", "timed nan", "lost 1", ""}) {
    EXPECT_THAT(
        ParseNumbers(answer, "timed", 1),
        StatusIs(absl::StatusCode::kInternal, HasSubstr("unknown form")));
  }
}

}  // namespace
}  // namespace lockstep::benchmarks
