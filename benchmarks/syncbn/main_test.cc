// Tests the commands as users run them: syncbn on small batches, the experiment
// on few images.
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
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
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The command.

CommandOutcome RunSyncBn(const std::string& flags) {
  return RunCommand(absl::StrCat("benchmarks/syncbn/syncbn ", flags),
                    /*deadline_seconds=*/120);
}

constexpr char kSmall[] =
    " --shapes=resnet18_d2l --network=none --per_rank_batch=1 --rounds=1";

// Returns the report of a run with `flags`, and expects that the run succeeds.
nlohmann::json Report(const std::string& flags) {
  const std::string folder = TestPath("");
  const CommandOutcome outcome =
      RunSyncBn(absl::StrCat(flags, " --output_dir=", folder));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  for (const absl::string_view line : absl::StrSplit(outcome.output, '\n')) {
    const bool free_text = absl::StrContains(line, testing::TempDir()) ||
                           absl::StrContains(line, "benchmarks/syncbn/syncbn ");
    if (!free_text) ExpectNarrow(line);
  }
  EXPECT_THAT(
      ReadFile(folder + "/syncbn.html"),
      IsOkAndHolds(AllOf(StartsWith("<!DOCTYPE html>"),
                         HasSubstr("<h1>Lockstep SyncBN report</h1>"))));
  return ReadJson(folder + "/syncbn.json");
}

void ExpectLayers(const nlohmann::json& json) {
  ASSERT_EQ(json["layers"].size(), 4u);
  for (const auto& layer : json["layers"]) {
    EXPECT_EQ(layer["wrong"], 0);
    for (const char* pass : {"forward", "backward", "both"}) {
      EXPECT_GT(layer["passes"][pass]["sync"]["median"], 0);
      EXPECT_GT(layer["passes"][pass]["own_local"]["median"], 0);
      EXPECT_GT(layer["passes"][pass]["message"], 0);
      EXPECT_GT(layer["passes"][pass]["split"]["kernels"], 0);
    }
    for (const auto& kernel : layer["kernels"]) EXPECT_GT(kernel["seconds"], 0);
    EXPECT_GT(layer["copy_bandwidth"], 0);
  }
}

TEST(SyncBnCommandTest, MeasuresLayersOnProcessesAndThreads) {
  for (const std::string backend : {"processes", "threads"}) {
    const nlohmann::json json =
        Report(absl::StrCat("--peers= --backend=", backend, kSmall));
    ExpectLayers(json);
    EXPECT_EQ(json["settings"]["backend"], backend);
    EXPECT_TRUE(json["layers"][0]["passes"]["both"]["beyond"].is_number());
    if (json["machine"]["cores"] >= 2) {
      EXPECT_EQ(json["bars"].size(), 4u);
      EXPECT_FALSE(json.contains("no_bar"));
    } else {
      EXPECT_THAT(json["no_bar"].dump(), HasSubstr("a core each"));
    }
    EXPECT_TRUE(json["network"].is_null());
  }
}

TEST(SyncBnCommandTest, TakesEveryTypeAndLayout) {
  for (const char* flags :
       {"--dtype=float16 --layout=nchw", "--dtype=bfloat16 --layout=nhwc",
        "--layout=nchw16c"}) {
    const nlohmann::json json =
        Report(absl::StrCat(flags, " --peers= --world_size=3", kSmall));
    ExpectLayers(json);
    EXPECT_FALSE(json.contains("bars"));
    EXPECT_EQ(json["no_bar"], "it is for 2 ranks");
  }
}

// On a machine with a GPU the command measures; otherwise it says why not.
TEST(SyncBnCommandTest, MeasuresOnGpusOrSaysThatThereAreNone) {
  const std::string flags = absl::StrCat("--backend=nccl", kSmall);
  const CommandOutcome outcome =
      RunSyncBn(absl::StrCat(flags, " --output_dir=", TestPath("")));
  if (outcome.exit_status == 0) {
    const nlohmann::json json = Report(flags);
    ExpectLayers(json);
    EXPECT_TRUE(json["gpu"].is_string());
    EXPECT_THAT(json["not_available"].dump(), HasSubstr("PyTorch: "));
    return;
  }
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output, AnyOf(StartsWith("syncbn: no GPU: "),
                                    StartsWith("syncbn: this program was "
                                               "built without CUDA")));
  EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1);
}

TEST(SyncBnCommandTest, TrainsTheNetwork) {
  const nlohmann::json json = Report(
      "--shapes= --network=resnet18_d2l --per_rank_batch=1 --rounds=1 "
      "--peers=");
  EXPECT_TRUE(json["layers"].empty());
  EXPECT_EQ(json["network"]["model"], "resnet18_d2l");
  EXPECT_EQ(json["network"]["image"].dump(), "[1,28,28]");
  EXPECT_EQ(json["network"]["messages"], 34);
  EXPECT_EQ(json["network"]["wrong"], 0);
  EXPECT_GT(json["network"]["sync"]["median"], 0);
  EXPECT_GT(json["network"]["ratio"]["median"], 0);
  // The bar is for 16 images.
  EXPECT_FALSE(json.contains("bars"));
}

TEST(SyncBnCommandTest, HoldsTheNetworksStepAgainstItsBar) {
  const nlohmann::json json =
      Report("--shapes= --network=resnet18_d2l --rounds=1 --peers=");
  if (json["machine"]["cores"] < 2) {
    EXPECT_THAT(json["no_bar"].dump(), HasSubstr("a core each"));
    return;
  }
  ASSERT_EQ(json["bars"].size(), 1u);
  const double ratio = json["network"]["ratio"]["median"];
  EXPECT_DOUBLE_EQ(json["bars"][0]["value"], 100 * (ratio - 1));
  EXPECT_EQ(json["bars"][0]["at_most"], 2);
}

// The number of messages shows the number of batch norms in the processes of
// the ranks, which get the network's flags.
TEST(SyncBnCommandTest, TrainsAnyNetworkWithBatchNormOnAnyImages) {
  constexpr char kOnce[] = " --shapes= --peers= --rounds=1 --per_rank_batch=2";
  const auto expect = [](const nlohmann::json& json, const char* model,
                         const char* image, int classes, int messages) {
    const nlohmann::json& network = json["network"];
    EXPECT_EQ(network["model"], model);
    EXPECT_EQ(network["image"].dump(), image);
    EXPECT_EQ(network["classes"], classes);
    EXPECT_EQ(network["messages"], messages);
    EXPECT_EQ(network["per_rank_batch"], 2);
    EXPECT_EQ(network["wrong"], 0);
    EXPECT_GT(network["sync"]["median"], 0);
    EXPECT_FALSE(json.contains("bars"));
  };
  expect(
      Report(absl::StrCat("--network=lenet_bn --image_size=20 --in_channels=3 "
                          "--num_classes=7",
                          kOnce)),
      "lenet_bn", "[3,20,20]", 7, 4);
  expect(Report(absl::StrCat(
             "--network=resnet50:width=8 --image_size=33x40 --backend=threads",
             kOnce)),
         "resnet50:width=8", "[3,33,40]", 10, 106);
}

// The rank does not get the memory for the detection set's shapes.
TEST(SyncBnCommandTest, ReportsWhatWasMeasuredBeforeAnError) {
  const std::string folder = TestPath("");
  const CommandOutcome outcome = RunCommand(
      absl::StrCat(
          "sh -c 'ulimit -v 600000; benchmarks/syncbn/syncbn "
          "--shapes=resnet18_d2l,detection --network=none --world_size=1 "
          "--per_rank_batch=2 --rounds=1 --peers= --output_dir=",
          folder, "'"),
      /*deadline_seconds=*/120);
  EXPECT_EQ(outcome.exit_status, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("\nnot measured: the rest: "));
  EXPECT_EQ(ReadJson(folder + "/syncbn.json")["layers"].size(), 4u);
}

// The command measures PyTorch if there is one; otherwise it says why not.
TEST(SyncBnCommandTest, ComparesWithPyTorch) {
  const nlohmann::json json = Report(kSmall);
  if (json["peer"].is_null()) {
    EXPECT_THAT(json["not_available"].dump(), HasSubstr("PyTorch: "));
  } else {
    EXPECT_GT(json["layers"][0]["passes"]["both"]["torch"]["median"], 0);
  }
  const nlohmann::json without =
      Report(absl::StrCat("--python=/absent/python", kSmall));
  EXPECT_THAT(without["not_available"].dump(), HasSubstr("/absent/python"));
  const std::string hangs = MakePython("sleep 1000");
  const nlohmann::json late = Report(
      absl::StrCat("--timeout=6 --world_size=1 --python=", hangs, kSmall));
  ExpectLayers(late);
  ASSERT_EQ(late["not_available"].size(), 1u);
  EXPECT_THAT(late["not_available"][0].get<std::string>(),
              AllOf(StartsWith("PyTorch: "), HasSubstr(hangs),
                    HasSubstr("it did not answer in time")));
}

TEST(SyncBnCommandTest, RefusesToBeARank) {
  ASSERT_EQ(setenv("RANK", "0", 1), 0);
  ASSERT_EQ(setenv("WORLD_SIZE", "2", 1), 0);
  const CommandOutcome outcome = RunSyncBn(kSmall);
  ASSERT_EQ(unsetenv("RANK"), 0);
  ASSERT_EQ(unsetenv("WORLD_SIZE"), 0);
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output, StartsWith("syncbn: it starts its ranks itself"));
}

// Every wrong flag gives exit status 2 and one line, which names the flag.
TEST(SyncBnCommandTest, NamesAFlagThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--shapes=resnet18_d2l,vgg",
       "--shapes: 'vgg' is not one of resnet18_d2l, resnet50, mobilenet, "
       "detection"},
      {"--network=lenet", "--network=lenet: has no batch norm; networks with "},
      {"--network=vit", "--network=vit: has no batch norm"},
      {"--network=vgg", "--network=vgg: no such model; the models are lenet, "},
      {"--network=", "--network=: must be a network, or none"},
      {"--network=resnet18:depth=2", "--network=resnet18:depth=2: "},
      {"--network=lenet_bn --image_size=5", "--network=lenet_bn: "},
      {"--image_size=12x", "--image_size=12x: '12x' must be 0, a size"},
      {"--in_channels=-1", "--in_channels: -1"},
      {"--num_classes=-1", "--num_classes: -1"},
      {"--shapes= --network=none", "--shapes: empty"},
      {"--world_size=0", "--world_size: 0"},
      {"--nproc=0", "--world_size: 0"},
      {"--world_size=65", "--world_size: 65"},
      {"--world_size=two", "--world_size=two"},
      {"--backend=mpi",
       "--backend: 'mpi' is not one of processes, threads, nccl"},
      {"--per_rank_batch=-1", "--per_rank_batch: -1"},
      {"--per_rank_batch=1000000",
       "--per_rank_batch: 1000000 images of 28x28x"},
      {"--shapes= --per_rank_batch=1000000",
       "--per_rank_batch: 1000000 images of 28x28, to train resnet18_d2l"},
      {"--layout=chwn", "--layout: 'chwn' is not one of nhwc, nchw, nchw16c"},
      {"--layout=nchw16c --backend=nccl", "--layout: nchw16c is for the CPU"},
      // The layers support it, but the check could not tell right from wrong.
      {"--dtype=float64", "--dtype: 'float64'"},
      {"--peers=apex", "--peers: 'apex'"},
      {"--rounds=-1", "--rounds: -1"},
      {"--seconds=0", "--seconds: 0"},
      {"--seconds=nan", "--seconds: nan"},
      {"--timeout=0", "--timeout: 0"},
      {"--timeout=1e7", "--timeout: 1e+07 is not above 0 and below 1e+06"},
      {"--seed=-1", "--seed"},
      {"--output_dir=/dev/null/out", "--output_dir: cannot write to /dev/null"},
      {"--speed=fast", "--speed"},
      {"fast", "'fast'"}};
  for (const auto& [flags, expected] : cases) {
    ExpectUsageError(RunSyncBn(flags), "syncbn", flags, expected);
  }
}

TEST(SyncBnCommandTest, ExplainsItsFlagsAndColumns) {
  const CommandOutcome outcome = RunSyncBn("--help");
  ExpectUsage(outcome, "syncbn", /*columns=*/100);
  EXPECT_THAT(outcome.output, HasSubstr("beyond: (SyncBN"));
}

// The experiment.

CommandOutcome RunExperiment(const std::string& flags) {
  return RunCommand(absl::StrCat("benchmarks/syncbn/experiment ", flags),
                    /*deadline_seconds=*/240);
}

TEST(SyncbnExperimentTest, TrainsThreeTimesAndDrawsTheCurves) {
  const std::string data = TestPath("-data");
  const std::string output = TestPath("-output");
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
                    HasSubstr("The cost of SyncBN: an epoch takes "),
                    HasSubstr(absl::StrCat("Wrote ", output))));
  EXPECT_THAT(ReadFile(output + "/experiment.png"),
              IsOkAndHolds(StartsWith("\x89PNG")));
  const nlohmann::json json = ReadJson(output + "/experiment.json");
  ASSERT_EQ(json["runs"].size(), 3u);
  const int world_sizes[] = {1, 2, 2};
  const bool sync_bn[] = {false, false, true};
  for (int i = 0; i < 3; ++i) {
    const auto& metrics = json["runs"][i]["metrics"];
    EXPECT_EQ(metrics["world_size"], world_sizes[i]);
    EXPECT_EQ(metrics["sync_bn"], sync_bn[i]);
    EXPECT_EQ(metrics["batch_size"], 2 * world_sizes[i]);
    EXPECT_DOUBLE_EQ(metrics["lr"].get<double>(), 0.0025 * world_sizes[i]);
    EXPECT_EQ(metrics["threads_per_rank"], 1);
    ASSERT_EQ(metrics["epochs"].size(), 2u);
    EXPECT_EQ(metrics["epochs"][1]["train_samples"], 20);
    EXPECT_EQ(metrics["epochs"][1]["test_samples"], 9);
  }
  const auto loss = [&](int run) {
    return json["runs"][run]["metrics"]["epochs"][0]["train_loss"];
  };
  EXPECT_NE(loss(1), loss(2));  // If equal, --sync_bn did nothing.
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
