// The command itself, from end to end, on small batches.
#include <stdlib.h>

#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/run_command.h"
#include "benchmarks/harness/fake_python.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

CommandOutcome RunSyncBn(const std::string& flags) {
  return RunCommand(absl::StrCat("benchmarks/syncbn/syncbn ", flags),
                    /*deadline_seconds=*/120);
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string OutputFolder() {
  return absl::StrCat(
      testing::TempDir(), "/out-",
      testing::UnitTest::GetInstance()->current_test_info()->name());
}

constexpr char kSmall[] =
    " --shapes=resnet18 --network=none --per_rank_batch=1 --rounds=1";

// The report of a run with `flags`, which goes well.
nlohmann::json Report(const std::string& flags) {
  const std::string folder = OutputFolder();
  const CommandOutcome outcome =
      RunSyncBn(absl::StrCat(flags, " --output_dir=", folder));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  for (const absl::string_view line : absl::StrSplit(outcome.output, '\n')) {
    const bool free_text = absl::StrContains(line, testing::TempDir()) ||
                           absl::StrContains(line, "benchmarks/syncbn/syncbn ");
    EXPECT_LE(line.size(), free_text ? line.size() : 100u) << line;
  }
  EXPECT_THAT(ReadText(folder + "/syncbn.html"),
              AllOf(StartsWith("<!DOCTYPE html>"),
                    HasSubstr("<h1>Lockstep SyncBN report</h1>")));
  const auto json =
      nlohmann::json::parse(ReadText(folder + "/syncbn.json"), nullptr, false);
  EXPECT_FALSE(json.is_discarded());
  return json;
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
    EXPECT_GT(json["layers"][0]["passes"]["both"]["beyond"], 0);
    if (json["machine"]["cores"] >= 2) {
      EXPECT_EQ(json["bars"].size(), 4u);
      EXPECT_TRUE(json["no_bar"].is_null());
    } else {
      EXPECT_THAT(json["no_bar"].dump(), HasSubstr("a core each"));
    }
    EXPECT_TRUE(json["network"].is_null());
  }
}

TEST(SyncBnCommandTest, TakesEveryTypeAndLayout) {
  for (const char* flags :
       {"--dtype=float16 --layout=nchw", "--dtype=bfloat16 --layout=nhwc"}) {
    const nlohmann::json json =
        Report(absl::StrCat(flags, " --peers= --world_size=3", kSmall));
    ExpectLayers(json);
    EXPECT_TRUE(json["bars"].empty());
    EXPECT_EQ(json["no_bar"], "it is for 2 ranks");
  }
}

// On a machine with a GPU it measures; else it says why not.
TEST(SyncBnCommandTest, MeasuresOnGpusOrSaysThatThereAreNone) {
  const std::string flags = absl::StrCat("--backend=nccl", kSmall);
  const CommandOutcome outcome =
      RunSyncBn(absl::StrCat(flags, " --output_dir=", OutputFolder()));
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
      "--shapes= --network=resnet18 --per_rank_batch=1 --rounds=1 --peers=");
  EXPECT_TRUE(json["layers"].empty());
  EXPECT_EQ(json["network"]["messages"], 34);
  EXPECT_EQ(json["network"]["wrong"], 0);
  EXPECT_GT(json["network"]["sync"]["median"], 0);
}

// With PyTorch if there is one; else it says why not.
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
}

// One that begins and then says nothing; and one that never does.
TEST(SyncBnCommandTest, GoesOnWithoutAPyTorchThatHangs) {
  for (const char* begin : {"echo lockstep: ready 2.1.0 no; ", ""}) {
    const std::string python = MakePython(absl::StrCat(begin, "sleep 1000"));
    const nlohmann::json json = Report(absl::StrCat(
        "--timeout=6 --python=", python, " --world_size=1", kSmall));
    ExpectLayers(json);
    ASSERT_EQ(json["not_available"].size(), 1u);
    EXPECT_THAT(json["not_available"][0].get<std::string>(),
                AllOf(StartsWith("PyTorch: "), HasSubstr(python),
                      HasSubstr("it did not answer in time")));
  }
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

// Every wrong flag: exit status 2, one line, and the flag in it.
TEST(SyncBnCommandTest, NamesAFlagThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--shapes=vgg", "--shapes: 'vgg'"},
      {"--network=lenet", "--network: 'lenet'"},
      {"--shapes= --network=none", "--shapes: empty"},
      {"--world_size=0", "--world_size: 0"},
      {"--world_size=two", "--world_size=two"},
      {"--backend=mpi", "--backend: 'mpi'"},
      {"--backend=nccl --shapes=", "--shapes: empty, and --backend=nccl"},
      {"--per_rank_batch=-1", "--per_rank_batch: -1"},
      {"--per_rank_batch=1000000",
       "--per_rank_batch: 1000000 images of 28x28x"},
      {"--shapes= --per_rank_batch=1000000",
       "--per_rank_batch: 1000000 images of 28x28, to train ResNet-18"},
      {"--layout=chwn", "--layout: 'chwn'"},
      {"--dtype=float64", "--dtype: 'float64'"},
      {"--peers=apex", "--peers: 'apex'"},
      {"--rounds=-1", "--rounds: -1"},
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
  EXPECT_EQ(outcome.exit_status, 0);
  for (const char* text :
       {"--shapes=", "--network=", "--world_size=", "--backend=",
        "--per_rank_batch=", "--layout=", "--dtype=", "--peers=", "--python=",
        "--seed=", "--seconds=", "--rounds=", "--timeout=", "--output_dir=",
        "beyond: (SyncBN - message) /"}) {
    EXPECT_THAT(outcome.output, HasSubstr(text));
  }
  for (const absl::string_view line : absl::StrSplit(outcome.output, '\n')) {
    EXPECT_LE(line.size(), 100u) << line;
  }
  EXPECT_THAT(outcome.output, Not(HasSubstr("worker")));
}

}  // namespace
}  // namespace lockstep::benchmarks
