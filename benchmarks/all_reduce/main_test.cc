// Tests of the command `allreduce`.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/process.h"
#include "base/run_command.h"
#include "base/status_matchers.h"
#include "base/subprocess.h"
#include "benchmarks/harness/testing.h"
#include "collectives/launch/launcher.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Runs the command, and expects that Open MPI leaves nothing in the folder that
// it is given. The folder is not below TempDir(), whose path is too long for
// Open MPI's sockets, and not in /dev/shm, which other tests inspect.
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
            HasSubstr("processes auto group "), HasSubstr("bound: update "),
            HasSubstr(absl::StrCat("Wrote ", path))));
  const nlohmann::json json = ReadJson(path);
  EXPECT_EQ(json["settings"]["world_sizes"][0], 3);
  ASSERT_EQ(json["results"].size(), 8u);
  for (const auto& result : json["results"]) {
    EXPECT_EQ(result["nwrong"], 0);
    EXPECT_GT(result["time"], 0);
    EXPECT_EQ(result["samples"], result["size"] == 8 ? 800 : 16);
  }
}

// The memory limit is too low for the second size.
TEST(AllReduceCommandTest, ReportsWhatWasMeasuredBeforeAnError) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome = RunCommand(
      absl::StrCat("sh -c 'ulimit -v 200000; benchmarks/all_reduce/allreduce "
                   "--buffers=ordinary --rounds=1 -b 256 -e 256M -f 1048576 "
                   "--json=",
                   path, "'"),
      /*deadline_seconds=*/120);
  EXPECT_EQ(outcome.exit_status, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("\nended: processes auto ordinary: "));
  EXPECT_EQ(ReadJson(path)["results"].size(), 1u);
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

TEST(AllReduceCommandTest, MeasuresListsOneAfterTheOther) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome = RunAllReduce(
      absl::StrCat("--backend=threads --buffers=group --world_size=2,3 "
                   "--dtype=float32,bfloat16 --in_place=true,false --json=",
                   path, kSmall));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("\n3 ranks, bfloat16, out of place\n"));
  EXPECT_EQ(ReadJson(path)["results"].size(), 2u * 2 * 2 * 2);
}

// The command line is one for nccl-tests.
TEST(AllReduceCommandTest, UnderstandsTheFlagsOfNcclTests) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome = RunAllReduce(
      absl::StrCat("-b 8 -e64K -f 8192 -n 3 -w 1 -c 0 -g 3 -d half -o max "
                   "--backend=threads --rounds=2 --json=",
                   path));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("all-reduce, 3 ranks, float16 max"),
                    HasSubstr("allreduce -b 8 -e64K "),
                    HasSubstr("Every answer is checked, also with -c 0.")));
  const nlohmann::json json = ReadJson(path);
  EXPECT_EQ(json["settings"]["warmup"], 1);
  ASSERT_EQ(json["results"].size(), 4u);
  EXPECT_EQ(json["results"][3]["size"], 64 << 10);
  EXPECT_EQ(json["results"][3]["samples"], 2 * 3);
}

// Ranks over TCP share no memory, so there are no updates and no bound.
TEST(AllReduceCommandTest, NamesTheHostsAndTheTransportOfARunOnSeveral) {
  if (!IsBuilt(Backend::kTcp)) GTEST_SKIP() << "built without OpenSSL";
  const std::string path = TestPath(".json");
  const ReservedPort port = ReservePort();
  std::string command = "env LOCKSTEP_TOKEN=0123456789 sh -c '";
  for (const int rank : {1, 0}) {
    absl::StrAppend(&command, "RANK=", rank,
                    " WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "
                    "GROUP_RANK=",
                    rank, " MASTER_ADDR=127.0.0.1 MASTER_PORT=", port.port,
                    " benchmarks/all_reduce/allreduce --json=", path, kSmall,
                    rank == 1 ? " & " : " && wait $!'");
  }
  const CommandOutcome outcome = RunCommand(command, /*deadline_seconds=*/100);
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("tcp auto ordinary"), HasSubstr("\nHosts: ")));
  const nlohmann::json json = ReadJson(path);
  EXPECT_EQ(json["hosts"].size(), 2u);
  for (const auto& result : json["results"]) {
    EXPECT_EQ(result["backend"], "tcp");
    EXPECT_TRUE(result["bound"].is_null());
  }
}

TEST(AllReduceCommandTest, ShowsNoBandwidthForOneRank) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome =
      RunAllReduce(absl::StrCat("--world_size=1 --json=", path, kSmall));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  const nlohmann::json json = ReadJson(path);
  ASSERT_FALSE(json["results"].empty());
  for (const auto& result : json["results"]) {
    EXPECT_GT(result["time"], 0);
    EXPECT_TRUE(result["alg_bw"].is_null());
    EXPECT_TRUE(result["bus_bw"].is_null());
  }
}

// Returns whether the program was built. The command resolves its own link, so
// a program that an earlier build left there counts.
bool IsBesideTheCommand(const std::string& program) {
  const std::filesystem::path command =
      std::filesystem::canonical("benchmarks/all_reduce/allreduce");
  return access((command.parent_path() / program).c_str(), X_OK) == 0;
}

// Gloo has no reduce-scatter. All peers support the other collectives.
TEST(AllReduceCommandTest, MeasuresEveryCollectiveOfEveryBackendAndPeer) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome = RunAllReduce(absl::StrCat(
      "--collective=reduce_scatter,all_gather,broadcast,all_to_all "
      "--backend=threads,processes,mpi --buffers=group "
      "--peers=mpi,oneccl,gloo "
      "--world_size=3 -n 3 -w 1 --json=",
      path, kSmall));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  const nlohmann::json json = ReadJson(path);
  for (const auto& result : json["results"]) {
    EXPECT_EQ(result["nwrong"], 0) << result;
    const bool moves = result["collective"] != "reduce_scatter";
    EXPECT_EQ(result["redop"], moves ? "none" : "sum");
  }
  if (!IsBesideTheCommand("allreduce_peer_gloo")) return;
  EXPECT_EQ(json["not_available"]["gloo"],
            "Gloo does not support reduce_scatter");
  const auto& last = json["results"].back();
  EXPECT_EQ(last["subject"], "Gloo");
  EXPECT_EQ(last["collective"], "all_to_all");
}

TEST(AllReduceCommandTest, NeedsAGpuForNccl) {
  if (access("/dev/nvidia0", F_OK) == 0) GTEST_SKIP() << "there is a GPU";
  const CommandOutcome outcome = RunAllReduce("--backend=nccl --peers=nccl");
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_EQ(
      outcome.output,
      "allreduce: --backend=nccl needs an NVIDIA GPU and its driver; none "
      "was found\n");
}

// A peer whose library is missing is named, and the other peers are measured.
TEST(AllReduceCommandTest, ComparesWithThePeersThatThereAre) {
  const std::string path = TestPath(".json");
  const CommandOutcome outcome = RunAllReduce(absl::StrCat(
      "--peers=mpi,gloo,oneccl --timeout=60 --json=", path, kSmall));
  ASSERT_EQ(outcome.exit_status, 0) << outcome.output;
  const nlohmann::json json = ReadJson(path);
  for (const auto& [key, program, name] :
       {std::tuple("mpi", "allreduce_peer_mpi", "Open MPI"),
        std::tuple("gloo", "allreduce_peer_gloo", "Gloo"),
        std::tuple("oneccl", "allreduce_peer_oneccl", "oneCCL")}) {
    if (!IsBesideTheCommand(program)) {
      EXPECT_THAT(outcome.output,
                  HasSubstr(absl::StrCat(name, ": not available: ")));
      continue;
    }
    EXPECT_FALSE(json["not_available"].contains(key)) << outcome.output;
    EXPECT_GT(json["results"][0]["ratios"][key], 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(absl::StrCat("/", key)));
  }
}

// A peer that lacks the type is killed. A killed mpirun leaves its ranks'
// memory, which the command must then remove.
TEST(AllReduceCommandTest, GoesOnWithoutAPeerThatLacksTheType) {
  const CommandOutcome outcome =
      RunAllReduce(absl::StrCat("--peers=mpi,gloo --dtype=bfloat16", kSmall));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("Open MPI: not available: "),
                                    HasSubstr("Gloo: not available: ")));
}

// The signal is sent after the first of two sizes. Each size takes three
// seconds.
TEST(AllReduceCommandTest, KeepsWhatWasMeasuredWhenItIsInterrupted) {
  const std::string path = TestPath(".json");
  const std::string shared = TestPath("-shm");
  std::filesystem::create_directories(shared);
  Subprocess command =
      Subprocess::Start(
          {"benchmarks/all_reduce/allreduce", "--peers=mpi", "--min_bytes=8",
           "--max_bytes=64", "--factor=8", "--seconds=6", "--json=" + path},
          {.environment = {{"OMPI_MCA_btl_vader_backing_directory", shared}}})
          .value();
  ASSERT_TRUE(command.AwaitOutput("processes auto group", absl::Seconds(60)));
  ASSERT_TRUE(SendSignal(command.pid(), SIGINT));
  EXPECT_EQ(command.Wait(absl::Seconds(60)), 128 + SIGINT);
  EXPECT_THAT(command.err(),
              HasSubstr("interrupted by signal 2 (SIGINT); the report has"));
  EXPECT_THAT(command.out(), HasSubstr("ended: interrupted by signal 2"));
  EXPECT_FALSE(ReadJson(path)["results"].empty());
  EXPECT_TRUE(std::filesystem::is_empty(shared));
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

// The second rank prints nothing, and ends together with the first.
TEST(AllReduceCommandTest, RunsAsTheRanksOfALauncher) {
  const std::string run =
      absl::StrCat(" benchmarks/all_reduce/allreduce ", kSmall);
  const CommandOutcome outcome = RunCommand(
      absl::StrCat(
          "sh -c 'export WORLD_SIZE=2 LOCKSTEP_RENDEZVOUS=", testing::TempDir(),
          "/ranks; RANK=1", run, " & RANK=0", run, " && wait $!'"),
      /*deadline_seconds=*/60);
  EXPECT_EQ(outcome.exit_status, 0) << outcome.output;
  EXPECT_THAT(outcome.output, StartsWith("all-reduce, 2 ranks"));
}

// Every wrong flag gives exit status 2 and one line that names the flag.
TEST(AllReduceCommandTest, NamesAFlagThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--world_size=0", "--world_size: 0"},
      {"--nproc=0", "--world_size: 0"},
      {"--world_size=65", "--world_size: 65"},
      {"--world_size=two", "--world_size: 'two' is not a number of ranks"},
      {"--world_size=2,", "--world_size: '' is not a number of ranks"},
      {"--in_place=maybe", "--in_place: 'maybe' is not one of true, false"},
      {"--backend=nccl --dtype=float32,float16",
       "--backend=nccl takes one --world_size, --dtype and --in_place"},
      {"--backend=cuda",
       "--backend: 'cuda' is not one of threads, processes, tcp, mpi, nccl"},
      {"--backend=nccl,mpi", "--backend=nccl cannot be combined with mpi"},
      {"--backend=tcp", "--backend=tcp needs ranks on several hosts"},
      {"--backend=nccl --peers=mpi",
       "--peers=mpi needs ranks on the CPU, not --backend=nccl"},
      {"--backend=nccl --algorithm=tree",
       "--algorithm: tree is not supported with --backend=nccl"},
      {"--backend=nccl -g 3 -o avg", "--op: NCCL's avg is"},
      {"--backend=nccl -n 121", "--iterations: 121"},
      {"--backend=nccl -w 2", "--warmup: 2"},
      {"--collective=scan",
       "--collective: 'scan' is not one of all_reduce, reduce_scatter, "
       "all_gather, broadcast, all_to_all"},
      {"-b few", "--min_bytes: 'few'"},
      {"-b", "-b needs a value"},
      {"--minbytes few", "--min_bytes: 'few'"},
      {"--stepfactor=1", "--factor: 1"},
      {"--ngpus", "--ngpus needs a value"},
      {"--ngpus=0", "--world_size: 0"},
      {"-t 2", "-t: each rank is a process or a thread"},
      {"-p 1", "-p: ranks always start at the same time"},
      {"-i 1024", "-i: sizes grow by a factor: use --factor"},
      {"-d all", "-d all: a run has one type; run it once for each"},
      {"-m 2", "-m is not supported"},
      {"-e 8 -b 128M",
       "--max_bytes (8 B) is smaller than --min_bytes (128 MiB)"},
      {"--algorithm=star",
       "--algorithm: 'star' is not one of auto, ring, tree, direct"},
      {"--buffers=device", "--buffers: 'device' is not one of ordinary, group"},
      {"--backend=", "--backend: ''"},
      {"--peers=mpi,", "--peers: ''"},
      {"--peers=nccl", "--peers=nccl needs --backend=nccl"},
      {"--dtype=float",
       "--dtype: 'float' is not one of float64, float32, float16, bfloat16, "
       "int32, int64, uint8"},
      {"--op=mean", "--op: 'mean' is not one of sum, prod, min, max, avg"},
      {"--min_bytes=1", "--min_bytes: 1"},
      {"--min_bytes=few", "--min_bytes: 'few'"},
      {"--max_bytes=4", "--max_bytes (4 B) is smaller than"},
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
  ExpectChecksFlags("allreduce", RunAllReduce, cases);
}

}  // namespace
}  // namespace lockstep::benchmarks
