// Tests of train --device, with a build of the command that has the stand-in
// for GPUs, and with the build that users run.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/io/safetensors.h"
#include "models/train/test_inputs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kDeadlineSeconds = 240;
constexpr char kWithStandin[] = "models/train/train_standin";
constexpr char kOfUsers[] = "models/train/train";
// Two steps: one of 6 images, and one of 4.
constexpr char kRun[] =
    "--model=lenet_bn --dataset=synthetic --image_size=16 --train_samples=10 "
    "--test_samples=5 --batch_size=6 --epochs=1 --lr=0.05";

// Returns the distance of two runs' weights without the biases before batch
// norms: they stay 0 except for rounding.
double WeightDistance(const NamedTensors& a, const NamedTensors& b) {
  return Distance(a, b, {"b1", "b2"});
}

class TrainDeviceTest : public testing::Test {
 protected:
  TrainDeviceTest() : root_(absl::StrCat(testing::TempDir(), "/train_device")) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }

  // Trains and writes to the folder `out`.
  CommandOutcome Run(absl::string_view program, absl::string_view flags,
                     absl::string_view out) const {
    return RunCommand(
        absl::StrCat(
            "env LOCKSTEP_STANDIN_GPUS=2 BUILD_WORKING_DIRECTORY=", root_, " ",
            program, " ", kRun, " --output_dir=", out, " ", flags),
        kDeadlineSeconds);
  }

  // Returns the weights and buffers of the checkpoint in the folder `out`.
  NamedTensors WeightsIn(absl::string_view out) const {
    const absl::StatusOr<Safetensors> file =
        ReadSafetensors(absl::StrCat(root_, "/", out, "/weights.safetensors"));
    EXPECT_THAT(file, IsOk());
    return file.ok() ? file->tensors : NamedTensors();
  }
  std::string MetricsIn(absl::string_view out) const {
    return ReadFile(absl::StrCat(root_, "/", out, "/metrics.json"))
        .value_or("");
  }

  NamedTensors Train(absl::string_view program, absl::string_view flags,
                     absl::string_view out) const {
    const CommandOutcome outcome = Run(program, flags, out);
    EXPECT_EQ(outcome.exit_status, 0) << flags << ": " << outcome.output;
    return WeightsIn(out);
  }

  const std::string root_;
};

// Two steps move weights by more than a hundredth of their norm, and rounding
// by less than 2^-12. The control: another rate.
TEST_F(TrainDeviceTest, CudaTakesTheCpusSteps) {
  const NamedTensors cpu = Train(kOfUsers, "", "cpu");
  const NamedTensors alone = Train(kWithStandin, "--device=cuda", "alone");
  const NamedTensors ranks =
      Train(kWithStandin, "--device=cuda --nproc=-1 --parallelism=dp --sync_bn",
            "ranks");
  // Three ranks share two GPUs, which NCCL of the stand-in does not support.
  const NamedTensors sharing =
      Train(kWithStandin, "--device=auto --nproc=3 --parallelism=dp --sync_bn",
            "sharing");
  const NamedTensors faster =
      Train(kWithStandin, "--device=cuda --lr=0.1", "faster");
  ASSERT_FALSE(cpu.empty() || alone.empty() || ranks.empty());
  EXPECT_LT(WeightDistance(alone, cpu), 0x1p-12);
  EXPECT_GT(WeightDistance(alone, cpu), 0);  // Another order of additions.
  EXPECT_LT(WeightDistance(ranks, cpu), 0x1p-12);
  EXPECT_LT(WeightDistance(sharing, cpu), 0x1p-12);
  ASSERT_FALSE(faster.empty());
  EXPECT_GT(WeightDistance(faster, cpu), 0x1p-7);
  EXPECT_THAT(MetricsIn("ranks"), HasSubstr("\"device\": \"cuda\""));
  EXPECT_THAT(MetricsIn("cpu"), HasSubstr("\"device\": \"cpu\""));
}

// bfloat16 rounds to 8 bits, and float16 to 11: the runs end less than a tenth
// and a hundredth of their way from float32's end. Two ranks sum their
// gradients.
TEST_F(TrainDeviceTest, CudaTrainsInSixteenBits) {
  const NamedTensors start =
      Train(kWithStandin, "--device=cuda --lr=1e-30", "start");
  const NamedTensors wide = Train(kWithStandin, "--device=cuda", "wide");
  const double way = WeightDistance(wide, start);
  EXPECT_GT(way, 0.01);
  for (const auto& [precision, most] :
       {std::pair("tf32", 0x1p-12), {"bfloat16", 0.1}, {"float16", 0.01}}) {
    const std::string flags = absl::StrCat(
        "--device=cuda --nproc=2 --parallelism=dp --sync_bn "
        "--precision=",
        precision);
    const CommandOutcome outcome = Run(kWithStandin, flags, precision);
    EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
    EXPECT_THAT(outcome.output,
                HasSubstr(absl::StrCat("on GPUs in ", precision)));
    EXPECT_THAT(outcome.output, Not(HasSubstr("skipped")));
    EXPECT_LT(WeightDistance(WeightsIn(precision), wide), most * way)
        << precision;
    EXPECT_THAT(MetricsIn(precision),
                HasSubstr(absl::StrCat("\"precision\": \"", precision, "\"")));
  }
}

// The first step makes weights so large that the gradients of the second
// overflow float16 at the first loss scale, and those of the next two steps at
// the halved ones. The control: float32 skips no step.
TEST_F(TrainDeviceTest, SaysHowManyStepsAreSkipped) {
  const std::string flags = "--device=cuda --epochs=2 --lr=1000 --precision=";
  const CommandOutcome outcome = Run(kWithStandin, flags + "float16", "some");
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("  1 step skipped\n"),
                                    HasSubstr("  2 steps skipped\n")));
  EXPECT_THAT(MetricsIn("some"), AllOf(HasSubstr("\"skipped_steps\": 1"),
                                       HasSubstr("\"skipped_steps\": 2")));
  const CommandOutcome wide = Run(kWithStandin, flags + "float32", "none");
  EXPECT_EQ(wide.exit_status, 0) << wide.output;
  EXPECT_THAT(wide.output, Not(HasSubstr("skipped")));
  EXPECT_THAT(MetricsIn("none"), Not(HasSubstr("skipped_steps")));
}

// A checkpoint moves between the devices.
TEST_F(TrainDeviceTest, ARunResumesOnTheOtherDevice) {
  const NamedTensors both = Train(kOfUsers, "--epochs=2", "both");
  Train(kWithStandin, "--device=cuda", "first");
  const NamedTensors resumed = Train(
      kOfUsers, "--epochs=2 --resume=first/weights.safetensors", "second");
  EXPECT_LT(WeightDistance(resumed, both), 0x1p-11);
  EXPECT_GT(WeightDistance(WeightsIn("first"), both), 0x1p-7);
}

// The state moves too. The limit is that of CudaTakesTheCpusSteps, of two
// epochs. Three ranks share two GPUs; the hosts then update.
TEST_F(TrainDeviceTest, EveryOptimizerResumesOnTheOtherDevice) {
  for (const absl::string_view optimizer :
       {"--momentum=0.9 --weight_decay=0.01",
        "--optimizer=adamw --weight_decay=0.1 --adam_epsilon=0.1"}) {
    const std::string two = absl::StrCat("--epochs=2 ", optimizer);
    const std::string resume = " --resume=first/weights.safetensors";
    const NamedTensors both = Train(kOfUsers, two, "both");
    const NamedTensors gpus = Train(
        kWithStandin,
        two + " --device=cuda --nproc=2 --parallelism=dp --sync_bn", "gpus");
    const NamedTensors sharing = Train(
        kWithStandin,
        two + " --device=cuda --nproc=3 --parallelism=dp --sync_bn", "sharing");
    Train(kWithStandin, absl::StrCat("--device=cuda ", optimizer), "first");
    const NamedTensors resumed = Train(kOfUsers, two + resume, "second");
    ASSERT_FALSE(both.empty());
    EXPECT_LT(WeightDistance(gpus, both), 0x1p-11);
    EXPECT_LT(WeightDistance(sharing, both), 0x1p-11);
    EXPECT_LT(WeightDistance(resumed, both), 0x1p-11);
    EXPECT_GT(WeightDistance(WeightsIn("first"), both), 0x1p-9);
  }
}

TEST_F(TrainDeviceTest, TakesARankForEachGpu) {
  const CommandOutcome all =
      Run(kWithStandin, "--device=cuda --nproc=-1 --parallelism=dp", "all");
  EXPECT_EQ(all.exit_status, 0);
  EXPECT_THAT(all.output, HasSubstr("2 ranks on GPUs (dp)"));
  EXPECT_THAT(all.output, Not(HasSubstr("the hosts sum")));
  const CommandOutcome sharing =
      Run(kWithStandin, "--device=cuda --nproc=3 --parallelism=dp", "three");
  EXPECT_EQ(sharing.exit_status, 0);
  EXPECT_THAT(sharing.output,
              HasSubstr("train: the hosts sum the gradients: "));
}

TEST_F(TrainDeviceTest, NamesWhatCannotBe) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--device=tpu", "--device=tpu: must be cpu, cuda or auto"},
      {"--nproc=-1", "--nproc=-1: is for --device=cuda and a host with"},
      {"--precision=half",
       "--precision: 'half' is not one of float32, tf32, bfloat16, float16"},
      {"--precision=bfloat16",
       "--precision=bfloat16: is for GPUs (--device=cuda); a CPU trains in "
       "float32"},
      {"--device=cuda --verbose",
       "--device=cuda: a GPU has nothing to print for --verbose"},
      {"--device=cuda --convolution=direct",
       "--device=cuda: a GPU chooses its convolutions itself"}};
  for (const auto& [flags, message] : cases) {
    const CommandOutcome outcome = Run(kWithStandin, flags, "none");
    EXPECT_EQ(outcome.exit_status, 2) << flags;
    EXPECT_THAT(outcome.output, HasSubstr("train: " + message));
  }
  if (HasGpu()) return;
  // The ranks find out when they create NCCL's group.
  const CommandOutcome shared = Run(
      kWithStandin,
      "--device=cuda --precision=float16 --nproc=3 --parallelism=dp", "none");
  EXPECT_EQ(shared.exit_status, 1);
  EXPECT_THAT(shared.output,
              HasSubstr("--precision=float16: needs a GPU for each rank: "));
  EXPECT_EQ(Run(kOfUsers, "--device=cuda", "none").exit_status, 2);
  const CommandOutcome fallen = Run(kOfUsers, "--device=auto", "fallen");
  EXPECT_EQ(fallen.exit_status, 0);
  EXPECT_THAT(fallen.output,
              HasSubstr("train: --device=auto: the CPU computes: "));
}

}  // namespace
}  // namespace lockstep
