// Tests the whole command on a small data set.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/data_types.h"
#include "base/files.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/testing.h"
#include "collectives/launch/launcher.h"
#include "collectives/rendezvous/protocol.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/cpu/algorithm.h"
#include "models/data/idx_files.h"
#include "models/data/image.h"
#include "models/data/png.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Tests of the command.

CommandOutcome RunScaling(const std::string& flags) {
  return RunCommand(absl::StrCat("benchmarks/scaling/scaling ", flags),
                    /*deadline_seconds=*/60);
}

// Creates a folder with the four files of the data set, with 64 training
// images. Returns its path.
std::string MakeDataFolder() {
  const std::string folder = TestPath("-data");
  std::filesystem::create_directories(folder);
  WriteIdxFiles(folder, /*train=*/64, /*test=*/8);
  return folder;
}

int CountEntries(const std::string& folder) {
  return static_cast<int>(
      std::distance(std::filesystem::directory_iterator(folder),
                    std::filesystem::directory_iterator()));
}

void ExpectWholeReport(const CommandOutcome& outcome, const std::string& folder,
                       const std::string& backend) {
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("round 1 of 1: 2 ranks, 32 images a step: "),
                    HasSubstr("Strong scaling: a step is 16 images in all"),
                    HasSubstr("Weak scaling: a step is 16 images on each"),
                    HasSubstr("At 2 ranks, weak scaling reaches"),
                    HasSubstr("Wrote ")));
  const nlohmann::json json = ReadJson(folder + "/scaling.json");
  EXPECT_EQ(json["settings"]["backend"], backend);
  for (const int mode : {0, 1}) {
    const auto& configurations = json["modes"][mode]["configurations"];
    ASSERT_EQ(configurations.size(), 2u);
    for (const int i : {0, 1}) {
      EXPECT_EQ(configurations[i]["world_size"], i + 1);
      EXPECT_EQ(configurations[i]["step_seconds"]["steps"], 3);
      EXPECT_GT(configurations[i]["images_per_second"]["median"], 0);
      EXPECT_EQ(configurations[i]["convolution"], "direct");
      EXPECT_GT(configurations[i]["parts_seconds"]["compute"], 0);
    }
  }
  EXPECT_THAT(
      ReadFile(folder + "/scaling.html"),
      IsOkAndHolds(AllOf(StartsWith("<!DOCTYPE html>"),
                         HasSubstr("<h1>Lockstep scaling report</h1>"))));
  EXPECT_THAT(ReadFile(folder + "/scaling.md"),
              IsOkAndHolds(StartsWith("# Lockstep scaling report\n")));
  EXPECT_EQ(CountEntries(folder), 3);
}

constexpr char kSmall[] =
    " --steps=3 --rounds=1 --warmup_steps=1 --nproc=1,2 --batch_size=16";

// By default the command writes into the folder where `bazel run` was called.
// The command leaves nothing else there and no temporary files.
TEST(ScalingTest, WritesTheReportOfProcessesAndThreads) {
  const std::string data = MakeDataFolder();
  for (const std::string backend : {"processes", "threads"}) {
    const std::string folder = TestPath("-" + backend);
    const std::string temporary = folder + "-tmp";
    std::filesystem::create_directories(folder);
    std::filesystem::create_directories(temporary);
    ASSERT_EQ(setenv("BUILD_WORKING_DIRECTORY", folder.c_str(), 1), 0);
    ASSERT_EQ(setenv("TMPDIR", temporary.c_str(), 1), 0);
    const CommandOutcome outcome = RunScaling(
        absl::StrCat("--data_dir=", data, " --backend=", backend, kSmall));
    ASSERT_EQ(unsetenv("BUILD_WORKING_DIRECTORY"), 0);
    ASSERT_EQ(unsetenv("TMPDIR"), 0);
    ExpectWholeReport(outcome, folder + "/lockstep-scaling", backend);
    EXPECT_EQ(CountEntries(folder), 1);
    EXPECT_EQ(CountEntries(temporary), 0);
  }
}

// At one rank, all backends of a type report the same run; at two ranks, each
// has its own. The test uses another network than LeNet and other images.
TEST(ScalingTest, MeasuresBackendsAndTypesSideBySide) {
  const absl::Status supported = CheckActivationType(DataType::kBFloat16);
  if (!supported.ok()) GTEST_SKIP() << supported.message();
  std::vector<std::string> backends = {"threads", "processes"};
  if (access("benchmarks/scaling/scaling_mpi", X_OK) == 0) {
    backends.push_back("mpi");
  }
  const std::string folder = TestPath("");
  const CommandOutcome outcome = RunScaling(absl::StrCat(
      "--dataset=synthetic --train_samples=64 --image_size=12 --in_channels=3",
      " --model=resnet18_d2l:width=4 --mode=weak --type=float32,bfloat16",
      " --backend=", absl::StrJoin(backends, ","), kSmall,
      " --output_dir=", folder));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("round 1 of 1: 2 ranks, processes, bfloat16, 32 "));
  EXPECT_THAT(outcome.output, HasSubstr("times those of threads ("));
  const nlohmann::json json = ReadJson(folder + "/scaling.json");
  EXPECT_EQ(json["settings"]["train_samples"], 64);
  EXPECT_EQ(json["settings"]["height"], 12);
  EXPECT_EQ(json["settings"]["channels"], 3);
  ASSERT_EQ(json["modes"].size(), 2 * backends.size());
  std::vector<nlohmann::json> alone, losses;
  for (size_t i = 0; i < json["modes"].size(); ++i) {
    const auto& mode = json["modes"][i];
    EXPECT_EQ(mode["backend"], backends[i / 2]);
    EXPECT_EQ(mode["type"], i % 2 == 0 ? "float32" : "bfloat16");
    ASSERT_EQ(mode["configurations"].size(), 2u);
    alone.push_back(mode["configurations"][0]);
    losses.push_back(mode["configurations"][1]["rounds"][0]["loss"]);
    EXPECT_EQ(alone[i], alone[i % 2]);
    // The bits of a sum do not depend on the backend.
    EXPECT_EQ(losses[i], losses[i % 2]);
  }
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_NE(losses[0], losses[1]);
}

// Creates an image folder with a class for each of `classes`. Each class has
// four images of 28 x 28 to train on and one to test with. Returns its path.
std::string MakeImageFolder(const std::vector<std::string>& classes) {
  const std::string folder = TestPath("-images");
  const std::string png =
      *EncodePng({28, 28, 1, std::vector<uint8_t>(28 * 28, 100)});
  for (const std::string& name : classes) {
    for (const std::string& image :
         {"train/" + name + "/0", "train/" + name + "/1",
          "train/" + name + "/2", "train/" + name + "/3",
          "test/" + name + "/0"}) {
      const std::string path = absl::StrCat(folder, "/", image, ".png");
      std::filesystem::create_directories(
          std::filesystem::path(path).parent_path());
      EXPECT_THAT(ReplaceFile(path, png), IsOk());
    }
  }
  return folder;
}

TEST(ScalingTest, SaysHowManyBadImagesAreLeftOut) {
  const std::string data = MakeImageFolder({"a", "b"});
  const std::string flags = absl::StrCat(
      "--dataset=image_folder --skip_bad_images --image_size=28 --in_channels=1"
      " --steps=1 --rounds=1 --warmup_steps=1 --nproc=1 --mode=weak"
      " --batch_size=2 --output_dir=",
      TestPath(""), " --data_dir=", data);
  EXPECT_THAT(RunScaling(flags).output, Not(HasSubstr("left out")));
  for (const auto& [image, text] :
       {std::pair("train/a/1", "1 bad image is left out:"),
        {"test/b/0", "2 bad images are left out, such as"}}) {
    const std::string path = absl::StrCat(data, "/", image, ".png");
    ASSERT_THAT(ReplaceFile(path, "This is no image.\n"), IsOk());
    const CommandOutcome outcome = RunScaling(flags);
    EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(text));
    EXPECT_THAT(ReadFile(TestPath("") + "/scaling.md"),
                IsOkAndHolds(AllOf(HasSubstr(text),
                                   HasSubstr("/train/a/1.png: neither"))));
    EXPECT_EQ(
        ReadJson(TestPath("") + "/scaling.json")["settings"]["train_samples"],
        7);
  }
}

// Creates a program that answers as the Python of a DDP rank does, with
// `answer`. Returns its path.
std::string MakeDdpPython(const std::string& answer) {
  return MakePython(absl::StrCat(
      "echo lockstep: ready 9.9; read line; echo lockstep: loaded; read line;",
      "echo lockstep: ", answer, "; cat"));
}

// The first of PyTorch's steps is the warm-up, which does not count.
TEST(ScalingTest, MeasuresPyTorchAndTheBoundSideBySide) {
  const std::string path = TestPath(".json");
  const std::string flags = absl::StrCat(
      "--data_dir=", MakeDataFolder(),
      " --mode=weak --backend=apart --peers=torch",
      " --output_dir=", TestPath(""), " --json=", path, kSmall, " --python=");
  const CommandOutcome outcome =
      RunScaling(flags + MakeDdpPython("stepped 1 0.5 9 1 1 2"));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("times those of apart ("));
  const nlohmann::json json = ReadJson(path);
  EXPECT_THAT(json["settings"]["pytorch"].get<std::string>(),
              StartsWith("PyTorch 9.9 ("));
  const auto& apart = json["modes"][0]["configurations"][1];
  EXPECT_EQ(apart["world_size"], 2);
  EXPECT_EQ(apart["global_batch"], 32);
  const auto& ddp = json["modes"][1]["configurations"];
  EXPECT_EQ(ddp[0]["images_per_second"]["median"], 12);
  EXPECT_EQ(ddp[1]["images_per_second"]["median"], 24);
  EXPECT_TRUE(ddp[1]["convolution"].is_null());
  const std::pair<const char*, const char*> cases[] = {
      {"stepped 0 0.5 9 1 1 2", "rank 0 ended with other parameters"},
      {"stepped 1 0.5 9 1", "rank 0 timed 1 steps, not 3"},
      {"cannot RuntimeError: no gloo", "ddp: rank 0: RuntimeError: no gloo"}};
  for (const auto& [answer, why] : cases) {
    const CommandOutcome refused = RunScaling(flags + MakeDdpPython(answer));
    EXPECT_EQ(refused.exit_status, 1);
    EXPECT_THAT(refused.output, HasSubstr(why));
  }
}

// The two ranks have different labels, so only sums of gradients make them end
// with the same parameters.
TEST(ScalingTest, TrainsByDistributedDataParallelIfThereIsPyTorch) {
  const CommandOutcome outcome = RunScaling(absl::StrCat(
      "--data_dir=", MakeDataFolder(),
      " --model=lenet_bn --backend=ddp --peers=torch",
      " --mode=weak --output_dir=", TestPath(""), kSmall, " --nproc=2"));
  if (outcome.exit_status == 2) {
    EXPECT_THAT(outcome.output, StartsWith("scaling: --peers=torch: "));
    return;
  }
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
}

// A launcher starts two ranks, each as if on a host of its own. Rank 1 prints
// nothing. Without a token the ranks do not connect, because any process that
// connects could have them run programs.
TEST(ScalingTest, RunsAsTheRanksOfALauncherOnSeveralHosts) {
  if (!CanProve()) GTEST_SKIP() << "built without OpenSSL";
  const std::string folder = TestPath("");
  std::filesystem::create_directories(folder);
  const std::string flags = absl::StrCat(" --data_dir=", MakeDataFolder(),
                                         " --output_dir=", folder, kSmall);
  const ReservedPort port = ReservePort();
  std::string command = "sh -c '";
  for (const int rank : {1, 0}) {
    absl::StrAppend(&command, "RANK=", rank,
                    " WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "
                    "GROUP_RANK=",
                    rank, " MASTER_ADDR=127.0.0.1 MASTER_PORT=", port.port,
                    " benchmarks/scaling/scaling", flags,
                    rank == 1 ? " & " : " && wait $!'");
  }
  const CommandOutcome refused = RunCommand(command, /*deadline_seconds=*/100);
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_THAT(refused.output, HasSubstr("export LOCKSTEP_TOKEN="));
  const CommandOutcome outcome =
      RunCommand("env LOCKSTEP_TOKEN=0123456789 " + command,
                 /*deadline_seconds=*/100);
  EXPECT_THAT(outcome.output, HasSubstr("2 ranks, 32 images a step: "));
  ExpectWholeReport(outcome, folder, "tcp");
  const nlohmann::json json = ReadJson(folder + "/scaling.json");
  ASSERT_EQ(json["hosts"].size(), 2u);
  EXPECT_EQ(json["hosts"][1]["ranks"], nlohmann::json({1}));
  EXPECT_THAT(outcome.output, HasSubstr("Hosts: "));
}

TEST(ScalingTest, WarnsOfMoreRanksThanCores) {
  const std::string data = MakeDataFolder();
  const CommandOutcome outcome = RunScaling(absl::StrCat(
      "--data_dir=", data, " --output_dir=", TestPath(""),
      " --world_sizes=48 --mode=weak --steps=1 --rounds=1 --warmup_steps=1",
      " --batch_size=1 --backend=threads"));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  if (sysconf(_SC_NPROCESSORS_ONLN) < 48) {
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("warning: 48 ranks on"), HasSubstr("48*")));
  }
}

// For every wrong flag, the command exits with status 2 and prints one line
// with the flag.
TEST(ScalingTest, NamesAFlagThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--world_sizes=0", "--world_sizes: '0'"},
      {"--world_size=0", "--world_sizes: '0'"},
      {"--world_sizes=1,x", "--world_sizes: 'x'"},
      {"--mode=medium", "--mode: 'medium'"},
      {"--backend=processes,cuda", "--backend: 'cuda'"},
      {"--backend=tcp", "--backend=tcp needs ranks on several hosts"},
      {"--type=float16", "--type: 'float16'"},
      {"--peers=jax", "--peers: 'jax'"},
      {"--peers=torch --python=/bin/false", "--peers=torch: /bin/false: "},
      {"--backend=ddp --python=/bin/false", "--peers=torch: /bin/false: "},
      {"--peers=torch --model=vit:dropout=0.1", "--peers=torch: --model has"},
      {"--lr=0", "--lr=0: must be a positive number"},
      {"--model=alexnet", "--model=alexnet: "},
      {"--model=resnet18_d2l:depth=3", "--model=resnet18_d2l:depth=3: "},
      {"--augment=blur", "--augment=blur: "},
      {"--dataset=cifar", "--dataset: 'cifar'"},
      {"--batch_size=-1", "--batch_size: -1"},
      {"--batch_size=many", "--batch_size=many"},
      {"--world_sizes=4 --batch_size=3", "--batch_size: 3"},
      {"--rounds=-1", "--rounds: -1"},
      {"--steps=-1", "--steps: -1"},
      {"--warmup_steps=0", "--warmup_steps: 0"},
      {"--seconds=nan", "--seconds: nan"},
      {"--speed=fast", "--speed"},
      {"fast", "'fast'"}};
  ExpectChecksFlags("scaling", RunScaling, cases);
}

TEST(ScalingTest, NamesABatchLargerThanTheDataSetAndAFolderThatCannotBe) {
  const std::string data = MakeDataFolder();
  const CommandOutcome outcome = RunScaling(
      absl::StrCat("--data_dir=", data, " --world_sizes=1,2 --batch_size=33"));
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_THAT(outcome.output, StartsWith("scaling: --batch_size: a step of 66 "
                                         "images, at 2 ranks, is more than"));
  const CommandOutcome unwritable = RunScaling(absl::StrCat(
      "--data_dir=", data, " --output_dir=/dev/null/out --batch_size=16"));
  EXPECT_EQ(unwritable.exit_status, 2);
  EXPECT_THAT(unwritable.output,
              StartsWith("scaling: --output_dir: cannot write to "
                         "/dev/null/out"));
}

TEST(ScalingTest, NamesDataThatIsMissing) {
  const CommandOutcome outcome = RunScaling("--data_dir=/absent/data");
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output,
              AllOf(StartsWith("scaling: "), HasSubstr("/absent/data")));
}

}  // namespace
}  // namespace lockstep::benchmarks
