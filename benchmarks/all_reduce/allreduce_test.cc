// The command itself, from end to end, on small messages.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Expects that nothing of Open MPI is left in the folder that it is given: not
// below TempDir(), whose path is too long for Open MPI's sockets, and not in
// /dev/shm, at which other tests look.
CommandOutcome RunAllReduce(const std::string& flags) {
  const absl::StatusOr<TemporaryFolder> folder =
      TemporaryFolder::Create("mpi", "/tmp");
  EXPECT_THAT(folder, IsOk());
  if (!folder.ok()) return {};
  setenv("OMPI_MCA_btl_vader_backing_directory", folder->path().c_str(), 1);
  CommandOutcome outcome =
      RunCommand(absl::StrCat("benchmarks/all_reduce/allreduce ", flags),
                 /*deadline_seconds=*/120);
  EXPECT_TRUE(std::filesystem::is_empty(folder->path())) << flags;
  return outcome;
}

constexpr char kSmall[] =
    " --min_bytes=8 --max_bytes=64K --factor=8192 --rounds=2";

TEST(AllReduceCommandTest, MeasuresEveryBackendAndChecksTheAnswers) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome = RunAllReduce(absl::StrCat(
      "--backend=threads,processes --world_size=3 --json=", path, kSmall));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(
      outcome.output,
      AllOf(HasSubstr("all-reduce, 3 ranks, float32 sum, in place"),
            HasSubstr("      8 B threads auto ordinary "),
            HasSubstr(" 64 KiB threads auto ordinary "),
            HasSubstr("processes auto group "), HasSubstr("bound: copy "),
            HasSubstr(absl::StrCat("Wrote ", path))));
  const nlohmann::json json = ReadJson(path);
  EXPECT_EQ(json["settings"]["world_size"], 3);
  ASSERT_EQ(json["results"].size(), 8u);
  for (const auto& result : json["results"]) {
    EXPECT_EQ(result["nwrong"], 0);
    EXPECT_GT(result["time"], 0);
    EXPECT_EQ(result["samples"], result["size"] == 8 ? 800 : 16);
  }
}

TEST(AllReduceCommandTest, TakesEveryTypeOperationAndNumberOfRanks) {
  for (const char* flags :
       {"--dtype=float64 --op=prod", "--dtype=float16 --op=avg",
        "--dtype=bfloat16 --op=sum --in_place=false", "--dtype=int32 --op=min",
        "--dtype=int64 --op=max", "--dtype=uint8 --op=sum"}) {
    const CommandOutcome outcome = RunAllReduce(
        absl::StrCat(flags, " --backend=threads --buffers=group", kSmall));
    EXPECT_EQ(outcome.exit_status, 0) << flags << "\n" << outcome.output;
  }
  for (const int world_size : {1, 2, 5}) {
    const CommandOutcome outcome =
        RunAllReduce(absl::StrCat("--world_size=", world_size, kSmall));
    EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
    EXPECT_THAT(outcome.output,
                HasSubstr(absl::StrCat("all-reduce, ", world_size, " rank")));
  }
}

// A peer whose library is missing is named; the others are measured.
TEST(AllReduceCommandTest, ComparesWithThePeersThatThereAre) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome = RunAllReduce(
      absl::StrCat("--peers=mpi,gloo --timeout=60 --json=", path, kSmall));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  const nlohmann::json json = ReadJson(path);
  for (const auto& [key, program, name] :
       {std::tuple("mpi", "benchmarks/all_reduce/allreduce_peer_mpi",
                   "Open MPI"),
        std::tuple("gloo", "benchmarks/all_reduce/allreduce_peer_gloo",
                   "Gloo")}) {
    if (access(program, X_OK) != 0) {
      EXPECT_THAT(outcome.output,
                  HasSubstr(absl::StrCat(name, ": not available: ")));
      continue;
    }
    EXPECT_FALSE(json["not_available"].contains(key)) << outcome.output;
    EXPECT_GT(json["results"][0]["ratios"][key], 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("/", key)));
  }
}

// Such a peer is killed: mpirun too, which would then leave its ranks' memory.
TEST(AllReduceCommandTest, GoesOnWithoutAPeerThatLacksTheType) {
  const CommandOutcome outcome =
      RunAllReduce(absl::StrCat("--peers=mpi,gloo --dtype=bfloat16", kSmall));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("Open MPI: not available: "),
                                    HasSubstr("Gloo: not available: ")));
}

TEST(AllReduceCommandTest, LeavesNoFileBehind) {
  const std::string temporary = TestPath("-tmp");
  std::filesystem::create_directories(temporary);
  ASSERT_EQ(setenv("TMPDIR", temporary.c_str(), 1), 0);
  const CommandOutcome outcome =
      RunAllReduce(absl::StrCat("--peers=gloo", kSmall));
  ASSERT_EQ(unsetenv("TMPDIR"), 0);
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_TRUE(std::filesystem::is_empty(temporary));
}

TEST(AllReduceCommandTest, RefusesToBeARank) {
  ASSERT_EQ(setenv("RANK", "0", 1), 0);
  ASSERT_EQ(setenv("WORLD_SIZE", "2", 1), 0);
  const CommandOutcome outcome = RunAllReduce(kSmall);
  ASSERT_EQ(unsetenv("RANK"), 0);
  ASSERT_EQ(unsetenv("WORLD_SIZE"), 0);
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.output,
              StartsWith("allreduce: it starts its ranks itself"));
}

// Every wrong flag: exit status 2, one line, and the flag in it.
TEST(AllReduceCommandTest, NamesAFlagThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--world_size=0", "--world_size: 0"},
      {"--world_size=65", "--world_size: 65"},
      {"--world_size=two", "--world_size=two"},
      {"--backend=mpi,nccl",
       "--backend: 'nccl' is not one of threads, processes, mpi"},
      {"--algorithm=star",
       "--algorithm: 'star' is not one of auto, ring, tree, direct"},
      {"--buffers=device", "--buffers: 'device' is not one of ordinary, group"},
      {"--backend=", "--backend: ''"},
      {"--peers=mpi,", "--peers: ''"},
      {"--peers=nccl", "--peers: 'nccl'"},
      {"--dtype=float",
       "--dtype: 'float' is not one of float64, float32, float16, bfloat16, "
       "int32, int64, uint8"},
      {"--op=mean", "--op: 'mean' is not one of sum, prod, min, max, avg"},
      {"--min_bytes=1", "--min_bytes: 1"},
      {"--min_bytes=few", "--min_bytes: 'few'"},
      {"--max_bytes=4", "--max_bytes: 4"},
      {"--max_bytes=1000G", "--max_bytes: messages of 512 GiB need"},
      {"--factor=1", "--factor: 1"},
      {"--rounds=-1", "--rounds: -1"},
      {"--iterations=-1", "--iterations: -1"},
      {"--iterations=5000", "--iterations: 5000"},
      {"--warmup=-2", "--warmup: -2"},
      {"--seconds=0", "--seconds: 0"},
      {"--seconds=nan", "--seconds: nan"},
      {"--timeout=-1", "--timeout: -1"},
      {"--json=/absent/folder/x.json", "--json: cannot write to /absent"},
      {"--speed=fast", "--speed"},
      {"fast", "'fast'"}};
  for (const auto& [flags, expected] : cases) {
    ExpectUsageError(RunAllReduce(flags), "allreduce", flags, expected);
  }
}

TEST(AllReduceCommandTest, ExplainsItsFlags) {
  ExpectUsage(RunAllReduce("--help"), "allreduce");
}

}  // namespace
}  // namespace lockstep::benchmarks
