// The experiment as its users run it, on a handful of images.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/run_command.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/idx_files.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

CommandOutcome RunExperiment(const std::string& flags) {
  return RunCommand(absl::StrCat("benchmarks/syncbn/experiment ", flags),
                    /*deadline_seconds=*/240);
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(SyncbnExperimentTest, TrainsThreeTimesAndDrawsTheCurves) {
  const std::string data = absl::StrCat(testing::TempDir(), "/data");
  const std::string output = absl::StrCat(testing::TempDir(), "/output");
  std::filesystem::create_directories(data);
  WriteIdxFiles(data, /*train=*/24, /*test=*/10);
  const CommandOutcome outcome = RunExperiment(
      absl::StrCat("--data_dir=", data, " --output_dir=", output,
                   " --train_samples=20 --test_samples=9 --epochs=2"));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("== 1 rank =="),
                    HasSubstr("== 2 ranks, local batch norm =="),
                    HasSubstr("== 2 ranks, SyncBN =="),
                    HasSubstr("Mean distance of the train loss"),
                    HasSubstr(absl::StrCat("Wrote ", output))));
  EXPECT_THAT(ReadText(output + "/experiment.png"), StartsWith("\x89PNG"));
  const nlohmann::json json = nlohmann::json::parse(
      ReadText(output + "/experiment.json"), nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  ASSERT_EQ(json["runs"].size(), 3u);
  const int world_sizes[] = {1, 2, 2};
  const bool sync_bn[] = {false, false, true};
  for (int i = 0; i < 3; ++i) {
    const auto& metrics = json["runs"][i]["metrics"];
    EXPECT_EQ(metrics["world_size"], world_sizes[i]);
    EXPECT_EQ(metrics["sync_bn"], sync_bn[i]);
    EXPECT_EQ(metrics["batch_size"], 4);
    ASSERT_EQ(metrics["epochs"].size(), 2u);
    EXPECT_EQ(metrics["epochs"][1]["train_samples"], 20);
    EXPECT_EQ(metrics["epochs"][1]["test_samples"], 9);
  }
  const auto loss = [&](int run) {
    return json["runs"][run]["metrics"]["epochs"][0]["train_loss"];
  };
  EXPECT_NE(loss(1), loss(2));  // Else --sync_bn did nothing.
}

TEST(SyncbnExperimentTest, NamesTheRunThatFails) {
  const CommandOutcome outcome = RunExperiment(absl::StrCat(
      "--data_dir=/nowhere --output_dir=", testing::TempDir(), "/failed"));
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("/nowhere"),
                    HasSubstr("syncbn_experiment: the run 'single' failed")));
}

TEST(SyncbnExperimentTest, NamesTheFlagThatIsWrong) {
  const std::pair<std::string, std::string> cases[] = {
      {"--epochs=0", "--epochs: 0: must be at least 1"},
      {"--ranks=1", "--ranks: 1: must be at least 2"},
      {"--per_rank_batch=x", "--per_rank_batch: invalid number value: 'x'"},
      {"--lr=-1", "--lr: -1: must be a positive number"},
      {"--output_dir=/dev/null/x", "--output_dir=/dev/null/x"},
      {"--unknown", "unrecognized arguments: --unknown"},
  };
  for (const auto& [flags, expected] : cases) {
    ExpectUsageError(RunExperiment(flags), "syncbn_experiment", flags,
                     expected);
  }
}

TEST(SyncbnExperimentTest, ExplainsItself) {
  const CommandOutcome outcome = RunExperiment("--help");
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("--per_rank_batch"), HasSubstr("default: 2"),
                    HasSubstr("Exit status")));
}

}  // namespace
}  // namespace lockstep::benchmarks
