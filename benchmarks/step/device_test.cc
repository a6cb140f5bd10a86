// Tests the step on a GPU: the command in the build that has the stand-in.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/testing.h"
#include "benchmarks/step/turn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/networks/network.h"
#include "models/networks/networks.h"
#include "models/train/test_inputs.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr char kWithStandin[] = "benchmarks/step/step_standin";
constexpr char kOfUsers[] = "benchmarks/step/step";
constexpr char kTiny[] =
    " --batch=2 --image_size=16 --rounds=2 --seconds=1 --models=lenet_bn "
    "--seed=3 ";

CommandOutcome RunStep(absl::string_view program, absl::string_view flags) {
  return RunCommand(absl::StrCat(program, kTiny, flags),
                    /*deadline_seconds=*/240);
}

// Creates a peer that is our own process on the stand-in, with another line in
// place of `line` to load.
std::string MakePeer(absl::string_view line) {
  return MakePython(
      absl::StrCat("echo lockstep: ready 9.9; read line; { echo \"", line,
                   "\"; cat; } | ", kWithStandin, " --worker | sed -u 1d"));
}

TEST(StepOnGpuTest, TimesOursAndComparesItWithTheCpu) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome = RunStep(
      kWithStandin,
      absl::StrCat("--device=cuda --types=float32 --peers= --json=", path));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("on stand-in"),
                    HasSubstr("lenet_bn, batch 2, 1x16x16, GPU, float32"),
                    Not(HasSubstr("AVX-512")), Not(HasSubstr("at least"))));
  const nlohmann::json json = ReadJson(path);
  EXPECT_EQ(json["gpu"], "stand-in");
  EXPECT_EQ(json["settings"]["device"], "cuda");
  EXPECT_FALSE(json.contains("bars"));
  ASSERT_THAT(json["results"], SizeIs(1));
  const auto& result = json["results"][0];
  EXPECT_EQ(result["device"], "cuda");
  EXPECT_EQ(result["type"], "float32");
  EXPECT_EQ(result["layout"], "nhwc");
  EXPECT_TRUE(result["threads"].is_null());
  EXPECT_THAT(result["peak_flops_per_second"], IsEmpty());
  ASSERT_THAT(result["subjects"], SizeIs(2));
  EXPECT_EQ(result["subjects"][1]["subject"], "ours, eager");
  const auto& ours = result["subjects"][0];
  EXPECT_EQ(ours["subject"], "ours");
  EXPECT_THAT(ours["seconds"], SizeIs(2));
  EXPECT_GT(ours["step"]["min"], 0);
  // The GPU adds in another order than the CPU.
  EXPECT_GT(ours["gradient_error"], 0);
  EXPECT_LT(ours["gradient_error"], result["gradient_tolerance"]);
  EXPECT_TRUE(ours["memory_bytes"].is_null());
  EXPECT_TRUE(ours["peak_share"].is_null());
}

// With batch norm over two values, a ReLU that opens in one type and not in
// another changes much of a gradient. Hence the larger batch.
constexpr char kBatchOf16Bits[] = " --batch=8 ";

TEST(StepOnGpuTest, TimesEveryType) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome = RunStep(
      kWithStandin,
      absl::StrCat("--device=cuda --peers= --json=", path, kBatchOf16Bits,
                   "--types=float32,tf32,bfloat16,float16"));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  const nlohmann::json results = ReadJson(path)["results"];
  ASSERT_THAT(results, SizeIs(4));
  EXPECT_EQ(results[1]["type"], "tf32");
  EXPECT_EQ(results[2]["type"], "bfloat16");
  EXPECT_EQ(results[3]["type"], "float16");
  const auto error = [&](int i) {
    return results[i]["subjects"][0]["gradient_error"].get<double>();
  };
  EXPECT_LT(error(1), 10 * error(0));  // The stand-in does not round to tf32.
  EXPECT_GT(error(2), 10 * error(0));
  EXPECT_GT(error(3), 10 * error(0));
  EXPECT_GT(results[1]["gradient_tolerance"], results[0]["gradient_tolerance"]);
}

// Returns the answers of our process to the lines, after it has loaded LeNet.
std::vector<std::string> AnswersTo(absl::string_view lines) {
  const std::string folder = TestPath("-case");
  std::filesystem::create_directories(folder);
  const NetworkInput input = {.height = 16, .width = 16};
  EXPECT_THAT(WriteStepFiles(*CreateNetwork("lenet", input),
                             {.spec = "lenet", .batch = 2, .input = input},
                             /*seed=*/3, folder),
              IsOk());
  const CommandOutcome outcome =
      RunCommand(absl::StrCat("printf 'load 1 float32 eager nhwc cuda ", folder,
                              "\\n", lines, "' | ", kWithStandin, " --worker"),
                 /*deadline_seconds=*/240);
  std::vector<std::string> answers = absl::StrSplit(outcome.output, '\n');
  EXPECT_THAT(answers, SizeIs(testing::Gt(2))) << outcome.output;
  // "lockstep: ready ours" and "lockstep: loaded".
  answers.erase(answers.begin(), answers.begin() + 2);
  return answers;
}

// The shortest turn has two steps, and the first does not count.
TEST(StepOnGpuTest, TimesEachStepButTheFirstOfATurn) {
  const std::vector<std::string> answers =
      AnswersTo("time 0\\nfirst\\ntime 0\\nmemory\\nlayers\\n");
  ASSERT_THAT(answers, SizeIs(testing::Ge(5)));
  EXPECT_EQ(answers[0], "lockstep: cannot no first step");
  EXPECT_THAT(answers[1], StartsWith("lockstep: loss 2."));
  EXPECT_THAT(answers[2], testing::MatchesRegex("lockstep: timed [0-9.e-]+"));
  EXPECT_THAT(answers[3], StartsWith("lockstep: cannot the memory"));
  EXPECT_THAT(answers[4], StartsWith("lockstep: cannot the layers"));
}

TEST(StepOnGpuTest, TakesTurnsWithAPeerOnTheGpu) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome =
      RunStep(kWithStandin,
              absl::StrCat("--device=auto --types=float16 --json=", path,
                           " --python=", MakePeer("$line"), kBatchOf16Bits));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  const nlohmann::json result = ReadJson(path)["results"][0];
  ASSERT_THAT(result["subjects"], SizeIs(5));
  EXPECT_EQ(result["subjects"][2]["subject"], "PyTorch 9.9 eager nhwc");
  EXPECT_EQ(result["subjects"][3]["subject"], "PyTorch 9.9 compile nhwc");
  const auto& peer = result["subjects"][4];
  EXPECT_EQ(peer["subject"], "PyTorch 9.9 graph nhwc");
  EXPECT_THAT(peer["seconds"], SizeIs(2));
  EXPECT_GT(peer["ratio"]["median"], 0);
  // The peer computes on the same kind of device.
  EXPECT_EQ(peer["gradient_error"], result["subjects"][0]["gradient_error"]);
}

TEST(StepOnGpuTest, AsksThePeerForTheGpu) {
  const CommandOutcome outcome = RunStep(
      kWithStandin,
      absl::StrCat("--device=cuda --types=tf32 --peers=eager,graph --python=",
                   MakePython("echo lockstep: ready 9.9; read line;"
                              "echo lockstep: cannot asked for: $line; cat")));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  std::string text = outcome.output;
  for (char& c : text) c = c == '\n' ? ' ' : c;
  EXPECT_THAT(text, HasSubstr("load 1 tf32 eager nhwc cuda /"));
  EXPECT_THAT(text, HasSubstr("load 1 tf32 graph nhwc cuda /"));
  EXPECT_THAT(text, Not(HasSubstr("nchw")));
}

// PyTorch of the system, if there is one, finds no GPU.
TEST(StepOnGpuTest, SaysThatPyTorchFindsNoGpu) {
  if (HasGpu()) GTEST_SKIP() << "this host has a GPU";
  const CommandOutcome outcome = RunStep(
      kWithStandin, "--device=cuda --types=float32 --python=/usr/bin/python3");
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  std::string text = outcome.output;
  for (char& c : text) c = c == '\n' ? ' ' : c;
  EXPECT_THAT(text, HasSubstr("not available: "));
  EXPECT_THAT(text, testing::AnyOf(HasSubstr("this PyTorch finds no GPU"),
                                   HasSubstr("No module named 'torch'")));
}

TEST(StepOnGpuTest, NamesWhatCannotBe) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--device=tpu", "--device=tpu: must be cpu, cuda or auto"},
      {"--device=cuda --types=float64",
       "--types: 'float64' is not one of float32, tf32, bfloat16, float16"},
      {"--device=cuda --threads=1", "--device=cuda: a GPU has no --threads"},
      {"--device=cuda --convolution=direct",
       "--device=cuda: a GPU chooses its convolutions itself"},
      {"--device=cuda --layers",
       "--device=cuda: a GPU has no times of --layers"},
      {"--device=cuda --peers=eager,system",
       "--device=cuda: a GPU has no peer system; it has eager, compile and "
       "graph"}};
  for (const auto& [flags, message] : cases) {
    const CommandOutcome outcome = RunStep(kWithStandin, flags);
    EXPECT_EQ(outcome.exit_status, 2) << flags;
    EXPECT_THAT(outcome.output, StartsWith("step: " + message));
  }
  if (HasGpu()) return;
  const CommandOutcome refused = RunStep(kOfUsers, "--device=cuda");
  EXPECT_EQ(refused.exit_status, 2);
  EXPECT_THAT(refused.output, StartsWith("step: --device=cuda: "));
}

// On a host without GPUs the CPU computes, and the command says why.
TEST(StepOnGpuTest, FallsBackToTheCpu) {
  if (HasGpu()) GTEST_SKIP() << "this host has a GPU";
  const std::string path = TestPath(".json");
  const CommandOutcome outcome =
      RunStep(kOfUsers, absl::StrCat("--device=auto --types=float32 "
                                     "--peers= --json=",
                                     path));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("step: --device=auto: the CPU computes: "));
  const nlohmann::json json = ReadJson(path);
  EXPECT_TRUE(json["gpu"].is_null());
  EXPECT_EQ(json["results"][0]["device"], "cpu");
  EXPECT_EQ(json["results"][0]["threads"], 1);
}

}  // namespace
}  // namespace lockstep::benchmarks
