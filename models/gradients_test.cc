// The gradients command as its users run it: files, flags, exit statuses.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/data_type.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/create_model.h"
#include "models/gradients_run.h"
#include "models/model.h"
#include "models/safetensors.h"
#include "models/testing/gradients_files.h"
#include "tools/testing/expect_usage_error.h"
#include "tools/testing/run_command.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int kDeadlineSeconds = 120;

class GradientsTest : public testing::Test {
 protected:
  GradientsTest() : root_(absl::StrCat(testing::TempDir(), "/gradients")) {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
    Safetensors lenet = MakeWeights("lenet");
    lenet.metadata["model"] = "lenet";  // As a checkpoint has it.
    Write("lenet", lenet);
    Write("batch", RandomBatch(3));
  }

  static Safetensors MakeWeights(const std::string& model) {
    const absl::StatusOr<std::unique_ptr<Model>> made =
        CreateModel(model, /*seed=*/1);
    EXPECT_THAT(made, IsOk());
    return WeightsOf(**made);
  }

  std::string Path(const std::string& name) const {
    return absl::StrCat(root_, "/", name);
  }

  void Write(const std::string& name, const Safetensors& content) {
    ASSERT_THAT(WriteSafetensors(Path(name), content), IsOk());
  }

  // From the folder with the files, as bazel run says where the user is.
  CommandOutcome Run(const std::string& flags) const {
    return RunCommand(absl::StrCat("env BUILD_WORKING_DIRECTORY=", root_,
                                   " models/gradients ", flags),
                      kDeadlineSeconds);
  }

  // Standard flags, with which the command succeeds, and more.
  CommandOutcome RunWith(const std::string& flags) const {
    return Run(absl::StrCat("--weights=lenet --batch=batch --out=out ", flags));
  }

  void ExpectError(const std::string& flags, const std::string& message) {
    const CommandOutcome outcome = RunWith(flags);
    EXPECT_EQ(outcome.exit_status, 1) << flags;
    EXPECT_THAT(outcome.output, StartsWith("gradients: " + message));
    EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1)
        << outcome.output;
    EXPECT_FALSE(std::filesystem::exists(Path("out")));
  }

  const std::string root_;
};

TEST_F(GradientsTest, WritesWhatTheLibraryComputes) {
  Write("resnet18", MakeWeights("resnet18"));
  struct Case {
    std::string flags;
    GradientsOptions options;
  };
  const std::vector<Case> cases = {
      {"", {}},
      {"--nproc=2", {.world_size = 2}},
      {"--nproc=5 --model=lenet --nosync_bn", {.world_size = 5}},
      {"--model=resnet18 --weights=resnet18", {.model = "resnet18"}},
      {"--model=resnet18 --weights=resnet18 --nproc=2 --sync_bn",
       {.model = "resnet18", .world_size = 2, .sync_bn = true}},
      {"--model=resnet18 --weights=resnet18 --nproc=2 --sync_bn=false",
       {.model = "resnet18", .world_size = 2}}};
  for (const auto& [flags, options] : cases) {
    std::filesystem::remove(Path("out"));
    const CommandOutcome outcome = RunWith(flags);
    EXPECT_EQ(outcome.exit_status, 0) << flags;
    EXPECT_EQ(outcome.output, "") << flags;
    const absl::StatusOr<Safetensors> weights =
        ReadSafetensors(Path(options.model));
    const absl::StatusOr<Safetensors> got = ReadSafetensors(Path("out"));
    ASSERT_THAT(weights, IsOk());
    ASSERT_THAT(got, IsOk());
    const absl::StatusOr<Safetensors> want =
        ComputeGradients(options, {"W", *weights}, {"B", RandomBatch(3)});
    ASSERT_THAT(want, IsOk());
    EXPECT_TRUE(*got == *want) << flags;
    EXPECT_EQ(got->tensors.size(), weights->tensors.size() + 1);
    for (const auto& [name, tensor] : weights->tensors) {
      ASSERT_TRUE(got->tensors.contains(name)) << name;
      EXPECT_EQ(got->tensors.at(name).shape, tensor.shape) << name;
      EXPECT_EQ(got->tensors.at(name).type, tensor.type) << name;
    }
    EXPECT_EQ(got->tensors.at("loss").type, DataType::kFloat32);
    EXPECT_EQ(got->tensors.at("loss").shape, std::vector<int64_t>{1});
  }
}

TEST_F(GradientsTest, TakesAbsolutePaths) {
  const CommandOutcome outcome =
      RunCommand(absl::StrCat("models/gradients --weights=", Path("lenet"),
                              " --batch=", Path("batch"),
                              " --out=", Path("absolute"), " --nproc=2"),
                 kDeadlineSeconds);
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_TRUE(std::filesystem::exists(Path("absolute")));
}

TEST_F(GradientsTest, NamesAWrongFlag) {
  for (const std::string flags :
       {"--nproc=0", "--nproc=65", "--nproc=two", "--model=vgg",
        "--threads_per_rank=0", "--timeout_s=0", "--sync_bn",
        "--weights=", "--batch=", "--out=", "--no_such_flag", "stray"}) {
    ExpectUsageError(RunWith(flags), "gradients", flags,
                     flags.substr(0, flags.find('=')));
  }
  for (const char* missing : {"weights", "batch", "out"}) {
    std::string flags;
    for (const std::string flag : {"weights", "batch", "out"}) {
      if (flag != missing) absl::StrAppend(&flags, "--", flag, "=lenet ");
    }
    ExpectUsageError(Run(flags), "gradients", flags,
                     absl::StrCat("--", missing, "="));
  }
  EXPECT_FALSE(std::filesystem::exists(Path("out")));
}

TEST_F(GradientsTest, ExplainsItself) {
  const CommandOutcome outcome = Run("--help");
  EXPECT_EQ(outcome.exit_status, 0);
  for (const char* flag :
       {"--model", "--weights", "--batch", "--out", "--nproc", "--sync_bn",
        "--threads_per_rank", "--timeout_s"}) {
    EXPECT_THAT(outcome.output, HasSubstr(flag));
  }
}

TEST_F(GradientsTest, NamesTheFileThatDoesNotFit) {
  std::ofstream(Path("text")) << "this is no safetensors file";
  ExpectError("--weights=none", Path("none"));
  ExpectError("--batch=none", Path("none"));
  ExpectError("--weights=text", Path("text"));
  ExpectError("--batch=text", Path("text"));
  ExpectError("--out=none/out", Path("none/out"));
  // Before it looks at what is to be computed.
  ExpectError("--out=none/out --weights=none", Path("none/out"));
  std::filesystem::create_directory(Path("folder"));
  ExpectError("--out=folder --batch=none", Path("folder") + ": cannot replace");
  ExpectError("--weights=batch --nproc=3",
              Path("batch") + ": has no tensor 'W1'");
  ExpectError("--batch=lenet", Path("lenet") + ": has no tensor 'images'");
  ExpectError("--model=resnet18", Path("lenet") + ": has no tensor ");
  Safetensors batch = RandomBatch(3);
  batch.tensors["labels"].data[8] = std::byte{200};
  Write("labels", batch);
  ExpectError("--batch=labels --nproc=2",
              Path("labels") +
                  ": tensor 'labels' has 200 at 1, which is not in [0, 10)");
}

}  // namespace
}  // namespace lockstep
