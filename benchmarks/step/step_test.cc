#include "benchmarks/step/step.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/statistics.h"
#include "benchmarks/harness/testing.h"
#include "benchmarks/step/roofline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/algorithm.h"
#include "models/model.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/reference/bounded.h"
#include "models/reference/winograd.h"
#include "nlohmann/json.hpp"
#include "report/write.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(CasesOfTest, TakesOptionsWithTheirNetworkAndEachThreadsAndTypes) {
  StepSettings settings = {.models = "vit:patch=4,depth=2,lenet,resnet34"};
  ASSERT_THAT(ParseStepLists("1,2", "bfloat16", "auto", "", settings), IsOk());
  const absl::StatusOr<std::vector<StepCase>> cases = CasesOf(settings);
  ASSERT_THAT(cases, IsOk());
  std::vector<std::string> names;
  for (const StepCase& one : *cases) names.push_back(Name(one));
  EXPECT_THAT(names,
              testing::ElementsAre(
                  "vit:patch=4,depth=2, batch 32, 1x28x28, 1 thread, bfloat16",
                  "vit:patch=4,depth=2, batch 32, 1x28x28, 2 threads, bfloat16",
                  "lenet, batch 256, 1x28x28, 1 thread, bfloat16",
                  "lenet, batch 256, 1x28x28, 2 threads, bfloat16",
                  "resnet34, batch 16, 3x112x112, 1 thread, bfloat16",
                  "resnet34, batch 16, 3x112x112, 2 threads, bfloat16"));
}

TEST(CasesOfTest, GivesResNet18BothBatchesUnlessOneIsNamed) {
  StepSettings settings = {.models = "resnet18_d2l,resnet18"};
  ASSERT_THAT(ParseStepLists("1", "float32", "auto", "", settings), IsOk());
  const auto batches = [&] {
    std::vector<std::string> names;
    const absl::StatusOr<std::vector<StepCase>> cases = CasesOf(settings);
    for (const StepCase& one : cases.value()) {
      names.push_back(absl::StrCat(one.spec, " ", one.batch));
    }
    return names;
  };
  EXPECT_THAT(batches(),
              testing::ElementsAre("resnet18_d2l 32", "resnet18_d2l 16",
                                   "resnet18 16"));
  settings.batch = 8;
  EXPECT_THAT(batches(), testing::ElementsAre("resnet18_d2l 8", "resnet18 8"));
}

TEST(CasesOfTest, GivesEachCaseTheConvolutionsOnce) {
  StepSettings settings = {.models = "lenet"};
  ASSERT_THAT(
      ParseStepLists("1", "float32", "direct,auto,direct", "", settings),
      IsOk());
  const absl::StatusOr<std::vector<StepCase>> cases = CasesOf(settings);
  ASSERT_THAT(cases, IsOk());
  EXPECT_THAT((*cases)[0].convolutions,
              testing::ElementsAre(ConvolutionAlgorithm::kDirect,
                                   ConvolutionAlgorithm::kAuto));
  EXPECT_EQ(OursName(ConvolutionAlgorithm::kAuto), "ours");
  EXPECT_EQ(OursName(ConvolutionAlgorithm::kDirect), "ours, direct");
}

// The expected number is computed by hand: each layer's products forward, and
// twice as many backward, without the image's gradient.
TEST(StepFlopsTest, CountsLeNets) {
  const int64_t forward[] = {2 * 26 * 26 * 20 * 9, 2 * 9 * 9 * 50 * 20 * 25,
                             2 * 800 * 128, 2 * 128 * 10};
  int64_t flops = -forward[0];
  for (const int64_t layer : forward) flops += 3 * layer;
  EXPECT_EQ(StepFlops(*CreateNetwork("lenet"), 256), 256 * flops);
}

TEST(WorkOfTest, CountsEachTensorOnce) {
  const Network network = *CreateNetwork("lenet");
  const int last = static_cast<int>(network.operations().size()) - 1;
  const int64_t weights = 128 * 10, parameters = weights + 10;
  const int64_t in = 8 * 128, out = 8 * 10;
  const OperationWork work = WorkOf(network, last, 8, DataType::kFloat32);
  EXPECT_EQ(work.forward_bytes, 4 * (in + out + parameters));
  EXPECT_EQ(work.backward_bytes, 4 * (out + 2 * in + weights + parameters));
  const OperationWork half = WorkOf(network, last, 8, DataType::kBFloat16);
  EXPECT_EQ(half.forward_bytes, 2 * (in + out + parameters));
  EXPECT_EQ(half.backward_bytes, 2 * (out + 2 * in + weights) + 4 * parameters);
  // Backward of the first convolution reads its output for ReLU. It reads no
  // weights, because the image has no gradient. The bytes are those of dy, y,
  // the image, and the parameters' gradients.
  const OperationWork first = WorkOf(network, 0, 8, DataType::kFloat32);
  EXPECT_EQ(first.backward_bytes,
            4 * (2 * 8 * 26 * 26 * 20 + 8 * 28 * 28 + 20 * 9 + 20));
}

// The expected bytes are computed by hand, for 5 samples of 2 channels of 3x4:
// 120 numbers a tensor, 2 weights and 2 biases.
TEST(WorkOfTest, CountsBatchNormWithItsAdditionAndReLU) {
  Network network("small", {.n = 1, .c = 2, .h = 3, .w = 4});
  const lockstep::Value x = network.Convolution(
      "conv", network.input(), {.out = 2, .kernel = 1, .bias = false});
  const lockstep::Value y = network.BatchNorm("open", x, /*relu=*/true);
  const lockstep::Value z = network.BatchNorm("plain", y, /*relu=*/false);
  network.BatchNormAddRelu("add", z, y);
  ASSERT_THAT(network.status(), IsOk());
  struct {
    int operation;
    DataType type;
    int64_t forward_bytes, backward_bytes;
  } const cases[] = {
      // Forward moves x, y; backward moves dy, x, y, dx.
      {1, DataType::kFloat32, 4 * (2 * 120 + 4), 4 * (4 * 120 + 2 + 4)},
      // Forward moves x, y; backward moves dy, x, dx. Without ReLU, backward
      // does not read y.
      {2, DataType::kFloat32, 4 * (2 * 120 + 4), 4 * (3 * 120 + 2 + 4)},
      // Forward moves x, residual, y; backward moves dy, x, y, dx, dresidual,
      // but not the residual.
      {3, DataType::kFloat32, 4 * (3 * 120 + 4), 4 * (5 * 120 + 2 + 4)},
      // The parameters are float32 in bfloat16 too.
      {3, DataType::kBFloat16, 2 * 3 * 120 + 4 * 4, 2 * 5 * 120 + 4 * (2 + 4)}};
  for (const auto& [operation, type, forward, backward] : cases) {
    const OperationWork work = WorkOf(network, operation, 5, type);
    EXPECT_EQ(work.forward_bytes, forward) << operation;
    EXPECT_EQ(work.backward_bytes, backward) << operation;
  }
}

TEST(WorkOfTest, CountsWhatPoolingKeeps) {
  Network network("small", {.n = 1, .c = 2, .h = 4, .w = 4});
  const lockstep::Value x = network.Convolution(
      "conv", network.input(), {.out = 2, .kernel = 1, .bias = false});
  network.Pool("max", x, {.maximum = true, .kernel = 2, .stride = 2});
  network.Pool("average", x, {.maximum = false, .kernel = 2, .stride = 2});
  const int64_t in = 3 * 2 * 4 * 4, out = 3 * 2 * 2 * 2;
  const OperationWork maximum = WorkOf(network, 1, 3, DataType::kFloat32);
  EXPECT_EQ(maximum.forward_bytes, 4 * (in + out) + out);
  EXPECT_EQ(maximum.backward_bytes, 4 * (in + out) + out);
  const OperationWork average = WorkOf(network, 2, 3, DataType::kFloat32);
  EXPECT_EQ(average.forward_bytes, 4 * (in + out));
  EXPECT_EQ(average.backward_bytes, 4 * (in + out));
}

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
  one.type = DataType::kBFloat16;
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
    EXPECT_THAT(ParseChosen(answer, 4),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("understood")));
  }
}

TEST(ParseNumbersTest, TakesNumbersAndReasons) {
  EXPECT_THAT(ParseNumbers("timed 0.5 1e-3", "timed", 1),
              IsOkAndHolds(std::vector<double>{0.5, 1e-3}));
  EXPECT_THAT(ParseNumbers("cannot because", "timed", 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, "because"));
  for (const char* answer : {"timed", "timed x", "timed nan", "lost 1", ""}) {
    EXPECT_THAT(ParseNumbers(answer, "timed", 1),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("understood")));
  }
}

// Tests of the command.

constexpr char kTiny[] =
    " --batch=2 --rounds=1 --threads=1 --types=float32 --seconds=1";

CommandOutcome RunStep(const std::string& flags) {
  return RunCommand(absl::StrCat("benchmarks/step/step ", flags),
                    /*deadline_seconds=*/200);
}

// Creates a peer that is our own process. The peer runs `tamper` on the file of
// weights before the load.
std::string MakeTamperedPeer(const std::string& tamper) {
  return MakePython(absl::StrCat(
      "echo lockstep: ready 9.9; read line; file=${line##* }/case.safetensors;",
      tamper, ";{ echo \"$line\"; cat; } | benchmarks/step/step --worker | ",
      "sed -u 1d"));
}

TEST(StepCommandTest, MeasuresOursByLayerInBothTypesAndThreads) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome = RunStep(absl::StrCat(
      kTiny,
      " --models=lenet,lenet_bn,vit:depth=1 --types=float32,bfloat16 --peers= ",
      "--threads=1,2 --layers --json=", path));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("where ours goes"));
  const nlohmann::json json = ReadJson(path);
  ASSERT_EQ(json["results"].size(), 12u);
  for (const auto& result : json["results"]) {
    ASSERT_EQ(result["subjects"].size(), 1u);
    EXPECT_GT(result["subjects"][0]["images_per_second"], 0);
    EXPECT_GT(result["layers"][0]["backward_seconds"], 0) << result;
    if (result["model"] == "lenet_bn") {
      EXPECT_GT(result["batch_norm"]["share"], 0) << result;
    } else {
      EXPECT_TRUE(result["batch_norm"].is_null()) << result;
    }
  }
}

// Direct convolutions come first, so the layers and the layout are of the
// direct run.
TEST(StepCommandTest, MeasuresOursOnceForEachConvolution) {
  const bool has_winograd =
      CheckConvolutionAlgorithm(ConvolutionAlgorithm::kWinograd).ok();
  const std::string path = TestPath(".json");
  const auto run = [&](const std::string& flags) {
    const CommandOutcome outcome = RunStep(absl::StrCat(
        kTiny, " --models=resnet18_d2l --peers= --layers --json=", path, " ",
        flags));
    EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
    return ReadJson(path)["results"][0];
  };
  const auto has = [](const nlohmann::json& result, const char* chosen) {
    for (const auto& layer : result["layers"]) {
      if (layer["chosen"] == chosen) return true;
    }
    return false;
  };
  const std::string second = has_winograd ? "winograd" : "auto";
  const nlohmann::json result = run("--convolution=direct," + second);
  ASSERT_EQ(result["subjects"].size(), 2u);
  EXPECT_EQ(result["subjects"][0]["subject"], "ours, direct");
  EXPECT_EQ(result["subjects"][1]["subject"],
            has_winograd ? "ours, winograd" : "ours");
  EXPECT_EQ(result["subjects"][1]["seconds"].size(), 1u);
  EXPECT_GT(result["subjects"][1]["ratio"]["median"], 0);
  // The algorithms differ, so the bits of the gradients differ.
  if (has_winograd) {
    EXPECT_GT(result["subjects"][1]["gradient_error"], 0);
  }
  EXPECT_EQ(result["layout"], "nhwc");
  EXPECT_TRUE(has(result, "direct"));
  EXPECT_TRUE(has(result, ""));
  EXPECT_FALSE(has(result, "winograd"));
  if (!has_winograd) return;
  const nlohmann::json winograd = run("--convolution=winograd");
  EXPECT_EQ(winograd["layout"], "nchw16c");
  EXPECT_TRUE(has(winograd, "winograd"));
}

TEST(StepCommandTest, TakesTurnsWithAPeerThatAgrees) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome = RunStep(
      absl::StrCat(kTiny, " --models=lenet --peers=eager --python=",
                   MakeTamperedPeer("true"), " --rounds=3 --json=", path));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  const nlohmann::json result = ReadJson(path)["results"][0];
  ASSERT_EQ(result["subjects"].size(), 3u) << outcome.output;
  EXPECT_EQ(result["subjects"][1]["subject"], "PyTorch 9.9 eager nchw");
  EXPECT_EQ(result["subjects"][1]["seconds"].size(), 3u);
  EXPECT_EQ(result["subjects"][1]["gradient_error"], 0);
}

// The control changes one weight of 16,000.
TEST(StepCommandTest, FailsIfAPeerComputesSomethingElse) {
  const std::string tampered = MakeTamperedPeer(
      "printf '\\000\\000\\240\\100' | dd of=\"$file\" conv=notrunc "
      "bs=1 seek=$((8 + $(od -An -t u8 -N 8 \"$file\"))) 2>/dev/null");
  const std::string wrong_loss = MakePython(
      "echo lockstep: ready 9.9; read line; echo lockstep: loaded; read line;"
      "echo lockstep: loss 3.5; cat");
  const std::pair<std::string, const char*> cases[] = {
      {tampered, "of the first step is"},
      {wrong_loss, "the loss of the first step is 3.5, ours 2.3"}};
  for (const auto& [python, why] : cases) {
    const CommandOutcome outcome = RunStep(
        absl::StrCat(kTiny, " --models=lenet --peers=eager --python=", python));
    EXPECT_EQ(outcome.exit_status, 1);
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("\nstep: lenet, batch 2, "), HasSubstr(why)));
  }
}

// If a peer fails, the command names the reason and measures the other
// subjects.
TEST(StepCommandTest, NamesAPeerThatFails) {
  const std::pair<std::string, const char*> cases[] = {
      {"/bin/false", "it ended with exit status 1"},
      {MakePython("echo lockstep: missing No module named torch"),
       "No module named torch"},
      {MakePython("echo lockstep: ready 9.9; read line;"
                  "echo lockstep: cannot RuntimeError: no compiler; cat"),
       "RuntimeError: no compiler"}};
  for (const auto& [python, why] : cases) {
    const CommandOutcome outcome = RunStep(absl::StrCat(
        kTiny, " --models=lenet --peers=compile --python=", python));
    EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
    std::string text = outcome.output;
    for (char& c : text) c = c == '\n' ? ' ' : c;
    EXPECT_THAT(text, AllOf(HasSubstr("compile nchw: "), HasSubstr(why),
                            HasSubstr(" ours ")));
  }
}

// Every kind of operation agrees with PyTorch's, if PyTorch is installed.
TEST(StepCommandTest, AgreesWithPyTorchIfThereIsOne) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome = RunStep(absl::StrCat(
      kTiny, " --batch=8 --image_size=56 --in_channels=2 --peers=eager ",
      "--models=lenet_bn,resnet18:width=8,vit:depth=1,width=16,"
      "heads=2 ",
      "--json=", path));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  const nlohmann::json json = ReadJson(path);
  if (json["peer"].is_null()) {
    EXPECT_THAT(outcome.output, HasSubstr("not available"));
    return;
  }
  for (const auto& result : json["results"]) {
    EXPECT_EQ(result["subjects"].size(), 3u) << outcome.output;
  }
}

// For every wrong flag, the command exits with status 2 and prints one line
// with the flag.
TEST(StepCommandTest, NamesAFlagThatIsWrong) {
  std::vector<std::pair<std::string, std::string>> cases = {
      {"--models=alexnet", "--models: alexnet: no such model"},
      {"--models=lenet:width=3", "--models: lenet:width=3: "},
      {"--models=vit:dropout=0.1", "--models: vit:dropout=0.1: no peer"},
      {"--models=vit --image_size=29", "--models: "},
      {"--batch=-1", "--batch"},
      {"--channels=65", "--in_channels"},
      {"--image_size=5000", "--image_size"},
      {"--classes=0", "--num_classes"},
      {"--threads=0", "--threads has '0'"},
      {"--threads=1,two", "--threads has 'two'"},
      {"--types=float16", "--types: 'float16'"},
      {"--peers=jax", "--peers: 'jax'"},
      {"--convolution=auto,fft",
       "--convolution=fft: must be auto, direct or winograd"},
      {"--convolution=", "--convolution=: must be auto"},
      {"--rounds=-1", "--rounds"},
      {"--seconds=0", "--seconds: 0"},
      {"--timeout=nan", "--timeout: nan"},
      {"--json=/absent/folder/x.json", "--json: cannot write to /absent"},
      {"fast", "'fast'"}};
  if (!CheckConvolutionAlgorithm(ConvolutionAlgorithm::kWinograd).ok()) {
    cases.emplace_back("--convolution=auto,winograd",
                       "--convolution=winograd: oneDNN ");
  }
  for (const auto& [flags, expected] : cases) {
    ExpectUsageError(RunStep(flags), "step", flags, expected);
  }
}

TEST(StepCommandTest, ExplainsItsFlags) {
  ExpectUsage(RunStep("--help"), "step", kTableColumns);
}

}  // namespace
}  // namespace lockstep::benchmarks
