// Tests of gradients --device, with a build of the command that has the
// stand-in for a GPU, and with the build that users run.
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/cpu_model.h"
#include "models/io/safetensors.h"
#include "models/model.h"
#include "models/train/test_inputs.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int kDeadlineSeconds = 120;
constexpr char kWithStandin[] = "models/train/gradients_standin";
constexpr char kOfUsers[] = "models/train/gradients";

class DeviceTest : public testing::Test {
 protected:
  DeviceTest() : root_(absl::StrCat(testing::TempDir(), "/device")) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    EXPECT_THAT(WriteSafetensors(root_ + "/batch", RandomBatch(5)), IsOk());
    WriteWeights("lenet_bn");
  }

  void WriteWeights(const std::string& model) {
    const absl::StatusOr<std::unique_ptr<Model>> made = CreateModel(model, 3);
    ASSERT_THAT(made, IsOk());
    ASSERT_THAT(WriteSafetensors(root_ + "/weights", WeightsOf(**made)),
                IsOk());
  }

  CommandOutcome Run(const std::string& program,
                     const std::string& flags) const {
    return RunCommand(
        absl::StrCat("env BUILD_WORKING_DIRECTORY=", root_, " ", program,
                     " --weights=weights --batch=batch ", "--out=out ", flags),
        kDeadlineSeconds);
  }

  // Returns the tensors that the command writes.
  NamedTensors TensorsOf(const std::string& program, const std::string& flags) {
    std::filesystem::remove(root_ + "/out");
    const CommandOutcome outcome = Run(program, flags);
    EXPECT_EQ(outcome.exit_status, 0) << flags << ": " << outcome.output;
    const absl::StatusOr<Safetensors> out = ReadSafetensors(root_ + "/out");
    EXPECT_THAT(out, IsOk());
    return out.ok() ? out->tensors : NamedTensors();
  }

  const std::string root_;
};

// The biases before batch norms, whose gradients are zero except for rounding.
const std::set<std::string>& ZeroGradients() {
  static const auto& names = *new std::set<std::string>{"b1", "b2"};
  return names;
}

// conformance/network/cuda_network_test.cc has the derived bounds. This test
// checks that the flag reaches the GPU, and that the ranks sum what it
// computes: rounding moves a tensor by less than 2^-12 of its norm, and another
// loss scale or share by more than a tenth.
TEST_F(DeviceTest, CudaComputesWhatTheCpuComputes) {
  const NamedTensors cpu =
      TensorsOf(kOfUsers, "--model=lenet_bn --nproc=3 --sync_bn");
  const NamedTensors cuda = TensorsOf(
      kWithStandin, "--model=lenet_bn --nproc=3 --sync_bn --device=cuda");
  const NamedTensors local =
      TensorsOf(kWithStandin, "--model=lenet_bn --nproc=3 --device=auto");
  ASSERT_FALSE(cpu.empty() || cuda.empty() || local.empty());
  EXPECT_LT(Distance(cuda, cpu, ZeroGradients()), 0x1p-12);
  EXPECT_GT(Distance(cuda, cpu, ZeroGradients()),
            0);  // Another order of additions.
  EXPECT_GT(Distance(local, cpu, ZeroGradients()), 0.1);
}

TEST_F(DeviceTest, ATransformerToo) {
  const std::string model = "--model=vit:patch=7,width=16,depth=1,heads=2";
  WriteWeights("vit:patch=7,width=16,depth=1,heads=2");
  const NamedTensors cpu = TensorsOf(kOfUsers, model);
  const NamedTensors cuda =
      TensorsOf(kWithStandin, absl::StrCat(model, " --nproc=2 --device=cuda"));
  ASSERT_FALSE(cpu.empty() || cuda.empty());
  EXPECT_LT(Distance(cuda, cpu, ZeroGradients()), 0x1p-12);
  EXPECT_GT(Distance(cuda, cpu, ZeroGradients()), 0);
}

TEST_F(DeviceTest, AutoFallsBackToTheCpuAndSaysSo) {
  const NamedTensors cpu = TensorsOf(kOfUsers, "--model=lenet_bn");
  const CommandOutcome outcome =
      Run(kOfUsers, "--model=lenet_bn --device=auto");
  EXPECT_EQ(outcome.exit_status, 0);
  if (HasGpu()) {
    EXPECT_EQ(outcome.output, "");
    return;
  }
  EXPECT_THAT(outcome.output,
              StartsWith("gradients: --device=auto: the CPU computes: "));
  const absl::StatusOr<Safetensors> out = ReadSafetensors(root_ + "/out");
  ASSERT_THAT(out, IsOk());
  EXPECT_TRUE(out->tensors == cpu);
}

TEST_F(DeviceTest, NamesWhatCannotBe) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--device=tpu", "--device=tpu: must be cpu, cuda or auto"},
      {"--device=cuda --dtype=float64",
       "--device=cuda: a GPU computes float32"},
      {"--device=cuda --convolution=direct",
       "--device=cuda: a GPU chooses its convolutions itself"}};
  for (const auto& [flags, message] : cases) {
    const CommandOutcome outcome =
        Run(kWithStandin, absl::StrCat("--model=lenet_bn ", flags));
    EXPECT_EQ(outcome.exit_status, 2) << flags;
    EXPECT_THAT(outcome.output, StartsWith("gradients: " + message));
  }
  const CommandOutcome wide =
      Run(kWithStandin, "--model=lenet_bn --device=auto --dtype=float64");
  EXPECT_EQ(wide.exit_status, 0);
  EXPECT_THAT(wide.output, HasSubstr("the CPU computes: a GPU computes float"));
}

TEST_F(DeviceTest, CudaTakesTheGpuOrIsAnError) {
  const CommandOutcome outcome =
      Run(kOfUsers, "--model=lenet_bn --device=cuda");
  if (HasGpu()) {
    const NamedTensors cpu = TensorsOf(kOfUsers, "--model=lenet_bn");
    const NamedTensors cuda =
        TensorsOf(kOfUsers, "--model=lenet_bn --device=cuda");
    EXPECT_LT(Distance(cuda, cpu, ZeroGradients()), 0x1p-12);
    EXPECT_GT(Distance(cuda, cpu, ZeroGradients()), 0);
    return;
  }
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_THAT(outcome.output,
              testing::AnyOf(
                  StartsWith("gradients: --device=cuda: no GPU: "),
                  StartsWith("gradients: --device=cuda: this program was built "
                             "without CUDA and cuDNN")));
}

}  // namespace
}  // namespace lockstep
