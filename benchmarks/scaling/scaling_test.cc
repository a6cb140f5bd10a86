// The command itself, from end to end, on a small data set.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/run_command.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/idx_files.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

CommandOutcome RunScaling(const std::string& flags) {
  return RunCommand(absl::StrCat("benchmarks/scaling/scaling ", flags),
                    /*deadline_seconds=*/60);
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The four files, with 64 images to train on.
std::string MakeDataFolder() {
  const std::string folder = absl::StrCat(MakeTestDir(), "/data");
  std::filesystem::create_directories(folder);
  for (const auto& [name, count] :
       {std::pair("/train", 64), std::pair("/t10k", 8)}) {
    const auto size = static_cast<uint32_t>(count);
    WriteBytes(absl::StrCat(folder, name, "-images-idx3-ubyte"),
               IdxBytes({size, 28, 28}, Ramp(count * 28 * 28)));
    WriteBytes(absl::StrCat(folder, name, "-labels-idx1-ubyte"),
               IdxBytes({size}, Ramp(count, 10)));
  }
  return folder;
}

std::string OutputFolder() {
  return absl::StrCat(
      testing::TempDir(), "/out-",
      testing::UnitTest::GetInstance()->current_test_info()->name());
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
  const auto json =
      nlohmann::json::parse(ReadText(folder + "/scaling.json"), nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["settings"]["backend"], backend);
  for (const int mode : {0, 1}) {
    const auto& configurations = json["modes"][mode]["configurations"];
    ASSERT_EQ(configurations.size(), 2u);
    for (const int i : {0, 1}) {
      EXPECT_EQ(configurations[i]["world_size"], i + 1);
      EXPECT_EQ(configurations[i]["step_seconds"]["steps"], 3);
      EXPECT_GT(configurations[i]["images_per_second"]["median"], 0);
      EXPECT_GT(configurations[i]["parts_seconds"]["compute"], 0);
    }
  }
  const std::string html = ReadText(folder + "/scaling.html");
  EXPECT_THAT(html, AllOf(StartsWith("<!DOCTYPE html>"),
                          HasSubstr("<h1>Lockstep scaling report</h1>")));
  EXPECT_THAT(ReadText(folder + "/scaling.md"),
              StartsWith("# Lockstep scaling report\n"));
  EXPECT_EQ(CountEntries(folder), 3);
}

constexpr char kSmall[] =
    " --steps=3 --rounds=1 --warmup_steps=1 --world_sizes=1,2 --batch_size=16";

TEST(ScalingTest, WritesTheReportOfProcesses) {
  const std::string data = MakeDataFolder();
  const std::string out = OutputFolder();
  ExpectWholeReport(RunScaling(absl::StrCat("--data_dir=", data,
                                            " --output_dir=", out, kSmall)),
                    out, "processes");
}

TEST(ScalingTest, WritesTheReportOfThreads) {
  const std::string data = MakeDataFolder();
  const std::string out = OutputFolder();
  ExpectWholeReport(
      RunScaling(absl::StrCat("--data_dir=", data, " --output_dir=", out,
                              " --backend=threads", kSmall)),
      out, "threads");
}

TEST(ScalingTest, LeavesNoTemporaryFolderBehind) {
  const std::string data = MakeDataFolder();
  const std::string temporary = absl::StrCat(OutputFolder(), "-tmp");
  std::filesystem::create_directories(temporary);
  ASSERT_EQ(setenv("TMPDIR", temporary.c_str(), 1), 0);
  const CommandOutcome outcome = RunScaling(
      absl::StrCat("--data_dir=", data, " --output_dir=", OutputFolder(),
                   " --mode=strong", kSmall));
  ASSERT_EQ(unsetenv("TMPDIR"), 0);
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_EQ(CountEntries(temporary), 0);
}

TEST(ScalingTest, ResolvesPathsWhereBazelRunWasCalled) {
  const std::string data = MakeDataFolder();
  const std::string folder = OutputFolder();
  std::filesystem::create_directories(folder);
  ASSERT_EQ(setenv("BUILD_WORKING_DIRECTORY", folder.c_str(), 1), 0);
  const CommandOutcome outcome = RunScaling(absl::StrCat(
      "--data_dir=", data, " --world_sizes=1 --mode=weak --steps=1 --rounds=1 ",
      "--warmup_steps=1 --batch_size=8"));
  ASSERT_EQ(unsetenv("BUILD_WORKING_DIRECTORY"), 0);
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_EQ(CountEntries(folder + "/lockstep-scaling"), 3);
}

TEST(ScalingTest, WarnsOfMoreRanksThanCores) {
  const std::string data = MakeDataFolder();
  const CommandOutcome outcome = RunScaling(absl::StrCat(
      "--data_dir=", data, " --output_dir=", OutputFolder(),
      " --world_sizes=48 --mode=weak --steps=1 --rounds=1 --warmup_steps=1",
      " --batch_size=1 --backend=threads"));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  if (sysconf(_SC_NPROCESSORS_ONLN) < 48) {
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("warning: 48 ranks on"), HasSubstr("48*")));
  }
}

// Every wrong flag: exit status 2, one line, and the flag in it.
TEST(ScalingTest, NamesAFlagThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--world_sizes=0", "--world_sizes: '0'"},
      {"--world_sizes=1,x", "--world_sizes: 'x'"},
      {"--mode=medium", "--mode: 'medium'"},
      {"--backend=mpi", "--backend: 'mpi'"},
      {"--model=alexnet", "--model: 'alexnet'"},
      {"--dataset=cifar", "--dataset: 'cifar'"},
      {"--batch_size=0", "--batch_size: 0"},
      {"--batch_size=many", "--batch_size=many"},
      {"--world_sizes=4 --batch_size=3", "--batch_size: 3"},
      {"--rounds=-1", "--rounds: -1"},
      {"--steps=-1", "--steps: -1"},
      {"--warmup_steps=0", "--warmup_steps: 0"},
      {"--seconds=nan", "--seconds: nan"},
      {"--speed=fast", "--speed"},
      {"fast", "'fast'"}};
  for (const auto& [flags, expected] : cases) {
    ExpectUsageError(RunScaling(flags), "scaling", flags, expected);
  }
}

TEST(ScalingTest, NamesABatchLargerThanTheDataSet) {
  const std::string data = MakeDataFolder();
  const CommandOutcome outcome = RunScaling(
      absl::StrCat("--data_dir=", data, " --world_sizes=1,2 --batch_size=33"));
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_THAT(outcome.output, StartsWith("scaling: --batch_size: a step of 66 "
                                         "images, at 2 ranks, is more than"));
}

TEST(ScalingTest, NamesDataThatIsMissing) {
  const CommandOutcome outcome = RunScaling("--data_dir=/absent/data");
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output,
              AllOf(StartsWith("scaling: "), HasSubstr("/absent/data")));
}

TEST(ScalingTest, NamesAnOutputFolderThatCannotBe) {
  const std::string data = MakeDataFolder();
  const CommandOutcome outcome = RunScaling(absl::StrCat(
      "--data_dir=", data, " --output_dir=/dev/null/out --batch_size=16"));
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_THAT(outcome.output,
              StartsWith("scaling: --output_dir: cannot write to "
                         "/dev/null/out"));
}

TEST(ScalingTest, ExplainsItsFlags) {
  const CommandOutcome outcome = RunScaling("--help");
  EXPECT_EQ(outcome.exit_status, 0);
  for (const char* flag :
       {"--world_sizes=", "--mode=", "--batch_size=", "--backend=", "--model=",
        "--dataset=", "--data_dir=", "--rounds=", "--steps=", "--warmup_steps=",
        "--seconds=", "--output_dir=", "--json=", "--require_bars"}) {
    EXPECT_THAT(outcome.output, HasSubstr(flag));
  }
  EXPECT_THAT(outcome.output, Not(HasSubstr("worker")));
}

}  // namespace
}  // namespace lockstep::benchmarks
