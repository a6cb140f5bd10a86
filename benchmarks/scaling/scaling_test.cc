// The command itself, from end to end, on a small data set.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/idx_files.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

CommandOutcome RunScaling(const std::string& flags) {
  return RunCommand(absl::StrCat("benchmarks/scaling/scaling ", flags),
                    /*deadline_seconds=*/60);
}

// The four files, with 64 images to train on.
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
    " --steps=3 --rounds=1 --warmup_steps=1 --world_sizes=1,2 --batch_size=16";

// By default into the folder where `bazel run` was called, and nothing else
// there or among temporary files.
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

TEST(ScalingTest, ExplainsItsFlags) {
  ExpectUsage(RunScaling("--help"), "scaling");
}

}  // namespace
}  // namespace lockstep::benchmarks
