#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/run_command.h"
#include "benchmarks/harness/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/algorithm.h"
#include "nlohmann/json.hpp"
#include "report/write.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
  const bool both = CheckActivationType(DataType::kBFloat16).ok();
  const CommandOutcome outcome = RunStep(absl::StrCat(
      kTiny, " --models=lenet,lenet_bn,vit:depth=1 --types=float32",
      both ? ",bfloat16" : "",
      " --peers= --threads=1,2 --layers --json=", path));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("where ours goes"));
  const nlohmann::json json = ReadJson(path);
  ASSERT_EQ(json["results"].size(), both ? 12u : 6u);
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
      {"--types=float64", "--types: 'float64'"},
      {"--types=float16", "--types: float16 is for GPUs (--device=cuda)"},
      {"--types=float32,tf32", "--types: tf32 is for GPUs (--device=cuda)"},
      {"--peers=graph", "--peers: graph is for GPUs (--device=cuda)"},
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
  ExpectChecksFlags("step", RunStep, cases, kTableColumns);
}

}  // namespace
}  // namespace lockstep::benchmarks
