// What the flags of `launch` give to ranks, as the ranks see it; and the same
// program as the ranks of our launcher, of torchrun, of mpirun and, as far as
// its environment goes, of srun. A launcher that this machine does not have is
// a skip that says so.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/cores.h"
#include "collectives/launch/testing/child_process.h"
#include "collectives/launch/testing/find_launchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AnyOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::SizeIs;

constexpr char kLaunch[] = "collectives/launch/launch";

std::vector<std::string> Command(std::vector<std::string> flags,
                                 const std::string& script) {
  flags.insert(flags.begin(), kLaunch);
  flags.insert(flags.end(), {"--", "sh", "-c", script});
  return flags;
}

std::vector<std::string> SortedLines(const std::string& text) {
  std::vector<std::string> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(LaunchFlagsTest, LogsWhatEachRankPrints) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/launch_test_logs/new");
  std::filesystem::remove_all(folder);
  for (const bool prefix : {true, false}) {
    std::vector<std::string> flags = {"--nproc=2", "--log_dir=" + folder};
    if (!prefix) flags.push_back("--noprefix_output");
    ChildProcess launch(Command(flags, "echo $RANK; printf end >&2; exit 0"));
    EXPECT_EQ(launch.Wait(), 0);
    EXPECT_THAT(SortedLines(launch.out()),
                prefix ? ElementsAre("[0] 0", "[1] 1") : ElementsAre("0", "1"));
    for (int rank = 0; rank < 2; ++rank) {
      const std::string path = absl::StrCat(folder, "/rank-", rank, ".log");
      std::ifstream file(path);
      const std::string text(std::istreambuf_iterator<char>(file), {});
      // The two streams come in either order.
      EXPECT_THAT(text, AnyOf(absl::StrCat(rank, "\nend"),
                              absl::StrCat("end", rank, "\n")));
    }
  }
}

TEST(LaunchFlagsTest, LogFolderIsWhereTheUserIs) {
  const std::string root = absl::StrCat(testing::TempDir(), "/launch_test_cwd");
  std::filesystem::remove_all(root);
  std::filesystem::create_directories(root);
  ChildProcess launch(Command({"--nproc=1", "--log_dir=logs"}, "true"),
                      {"BUILD_WORKING_DIRECTORY=" + root});
  EXPECT_EQ(launch.Wait(), 0) << launch.err();
  EXPECT_TRUE(std::filesystem::exists(root + "/logs/rank-0.log"));
}

TEST(LaunchFlagsTest, BindsRanksToCoresAndSaysSo) {
  const std::vector<int> cpus = AffinityCpus();
  const int ranks = static_cast<int>(cpus.size()) + 1;  // Ranks take turns.
  ChildProcess launch(
      Command({absl::StrCat("--nproc=", ranks), "--bind_cores"},
              "grep Cpus_allowed_list /proc/self/status; exit 0"));
  EXPECT_EQ(launch.Wait(), 0);
  std::vector<int> bound(cpus.back() + 1);
  for (const std::string& line : SortedLines(launch.out())) {
    int rank = -1;
    int cpu = -1;
    ASSERT_EQ(
        std::sscanf(line.c_str(), "[%d] Cpus_allowed_list: %d", &rank, &cpu), 2)
        << line;
    ASSERT_EQ(std::count(cpus.begin(), cpus.end(), cpu), 1);
    ++bound[cpu];
  }
  for (const int cpu : cpus) EXPECT_GE(bound[cpu], 1);
  EXPECT_THAT(launch.err(), MatchesRegex("lockstep: bound to cores: rank 0: "
                                         "[0-9]+; rank 1: [0-9]+.*\n"));
  ChildProcess unbound(
      Command({"--nproc=1"}, "grep Cpus_allowed_list /proc/self/status"));
  EXPECT_EQ(unbound.Wait(), 0);
  EXPECT_EQ(unbound.err(), "");
}

TEST(LaunchFlagsTest, SetsOneThreadUnlessToldOtherwise) {
  unsetenv("OMP_NUM_THREADS");
  ChildProcess by_default(Command({"--nproc=1"}, "echo $OMP_NUM_THREADS"));
  EXPECT_EQ(by_default.Wait(), 0);
  EXPECT_EQ(by_default.out(), "[0] 1\n");
  ChildProcess told(Command({"--nproc=1"}, "echo $OMP_NUM_THREADS"),
                    {"OMP_NUM_THREADS=3"});
  EXPECT_EQ(told.Wait(), 0);
  EXPECT_EQ(told.out(), "[0] 3\n");
}

TEST(LaunchFlagsTest, DealsOutGpus) {
  const std::string script = "echo ${CUDA_VISIBLE_DEVICES-unset}";
  ChildProcess dealt(Command({"--nproc=2", "--gpus_per_rank=2"}, script),
                     {"CUDA_VISIBLE_DEVICES=3,GPU-1a,5,6"});
  EXPECT_EQ(dealt.Wait(), 0) << dealt.err();
  EXPECT_THAT(SortedLines(dealt.out()), ElementsAre("[0] 3,GPU-1a", "[1] 5,6"));
  ChildProcess shared(
      Command({"--nproc=2", "--gpus_per_rank=1", "--share_gpus"}, script),
      {"CUDA_VISIBLE_DEVICES=7"});
  EXPECT_EQ(shared.Wait(), 0) << shared.err();
  EXPECT_THAT(SortedLines(shared.out()), ElementsAre("[0] 7", "[1] 7"));
  ChildProcess alone(Command({"--nproc=1"}, script),
                     {"CUDA_VISIBLE_DEVICES=3,4"});
  EXPECT_EQ(alone.Wait(), 0);
  EXPECT_EQ(alone.out(), "[0] 3,4\n");
}

TEST(LaunchFlagsTest, SaysWhichGpusAreMissing) {
  ChildProcess launch(Command({"--nproc=2", "--gpus_per_rank=1"}, "true"),
                      {"CUDA_VISIBLE_DEVICES=7"});
  EXPECT_EQ(launch.Wait(), 2);
  EXPECT_EQ(launch.err(),
            "launch: --gpus_per_rank=1: 2 ranks with 1 GPU each: "
            "CUDA_VISIBLE_DEVICES=\"7\" has 1 (see --share_gpus)\n");
}

TEST(LaunchFlagsTest, RefusesTooManyRanks) {
  for (const char* nproc : {"4097", "2000000000"}) {
    ChildProcess launch(Command({absl::StrCat("--nproc=", nproc)}, "true"));
    EXPECT_EQ(launch.Wait(), 2);
    EXPECT_EQ(launch.out(), "");
    EXPECT_EQ(launch.err(),
              absl::StrCat("launch: --nproc=", nproc, " is more than 4096\n"));
  }
}

TEST(LaunchFlagsTest, EndsRanksWhoseTimeIsUp) {
  ChildProcess launch(Command({"--nproc=3", "--timeout=100ms"},
                              "while :; do sleep 1000; done"));
  EXPECT_EQ(launch.Wait(), 124);
  EXPECT_EQ(launch.err(),
            "lockstep: the time limit of 0.1 s was over; ranks 0-2 were "
            "stopped.\n");
}

TEST(LaunchFlagsTest, RefusesATimeoutThatIsNone) {
  for (const char* timeout : {"0", "-1s", "-inf"}) {
    ChildProcess launch(Command({absl::StrCat("--timeout=", timeout)}, "true"));
    EXPECT_EQ(launch.Wait(), 2);
    EXPECT_EQ(launch.err(), absl::StrCat("launch: --timeout=", timeout,
                                         " is not more than 0\n"));
  }
}

TEST(LaunchFlagsTest, GivesAllRanksOnePortAndEachLaunchAnother) {
  // The inner launch runs while the outer one's port is taken.
  ChildProcess launch(
      Command({"--nproc=2"},
              absl::StrCat("echo $MASTER_ADDR:$MASTER_PORT; [ $RANK = 1 ] || ",
                           kLaunch, " --nproc=1 -- sh -c 'echo $MASTER_PORT'",
                           "; echo $GROUP_RANK/$GROUP_WORLD_SIZE")));
  EXPECT_EQ(launch.Wait(), 0);
  const std::vector<std::string> lines = SortedLines(launch.out());
  ASSERT_THAT(lines, SizeIs(5));
  EXPECT_THAT(lines[0], MatchesRegex("\\[0\\] 0/1"));
  EXPECT_THAT(lines[1], MatchesRegex("\\[0\\] 127\\.0\\.0\\.1:[0-9]+"));
  EXPECT_THAT(lines[2], MatchesRegex("\\[0\\] \\[0\\] [0-9]+"));
  EXPECT_EQ(lines[4].substr(4), lines[1].substr(4));
  EXPECT_NE(lines[1].substr(14), lines[2].substr(8));
}

// torchrun takes seconds to start, and longer on a busy machine.
constexpr absl::Duration kDeadline = absl::Seconds(100);

// A program, and the line that each of two of its ranks prints.
struct Program {
  const char* name;
  std::string path;
  std::string line;

  friend void PrintTo(const Program& program, std::ostream* out) {
    *out << program.name;
  }
};

class LaunchersTest : public testing::TestWithParam<Program> {
 protected:
  LaunchersTest()
      : folder_(absl::StrCat(testing::TempDir(), "/launchers_test")) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~LaunchersTest() override { std::filesystem::remove_all(folder_); }

  std::string program() const {
    return std::filesystem::absolute(GetParam().path).string();
  }

  // What a launcher is started with, so that what it leaves shows.
  std::vector<std::string> Environment() const { return {"TMPDIR=" + folder_}; }

  void ExpectLines(const std::string& out, int ranks) const {
    const std::vector<std::string> lines =
        absl::StrSplit(out, '\n', absl::SkipEmpty());
    EXPECT_THAT(lines, SizeIs(ranks));
    EXPECT_THAT(lines, Each(HasSubstr(GetParam().line)));
  }

  // No folder or file of the rendezvous is left.
  void ExpectNothingLeft() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr("lockstep-")));
    }
  }

  void ExpectRuns(const std::vector<std::string>& command) const {
    ChildProcess launcher(command, Environment());
    EXPECT_EQ(launcher.Wait(kDeadline), 0) << launcher.err();
    ExpectLines(launcher.out(), 2);
    ExpectNothingLeft();
  }

  const std::string folder_;
};

TEST_P(LaunchersTest, OurOwn) {
  ExpectRuns({kLaunch, "--nproc=2", "--", program()});
}

TEST_P(LaunchersTest, Mpirun) {
  std::vector<std::string> command = FindMpirun(2);
  if (command.empty()) GTEST_SKIP() << "no mpirun of Open MPI on this machine";
  command.push_back(program());
  ExpectRuns(command);
}

TEST_P(LaunchersTest, MpirunWithAShellBeforeEachRank) {
  std::vector<std::string> command = FindMpirun(2);
  if (command.empty()) GTEST_SKIP() << "no mpirun of Open MPI on this machine";
  // Not the last command of its shell, so that it does not become the shell.
  command.insert(command.end(), {"sh", "-c", program() + " && true"});
  ExpectRuns(command);
}

TEST_P(LaunchersTest, Torchrun) {
  static const std::vector<std::string> torchrun = FindTorchrun(2);
  if (torchrun.empty()) GTEST_SKIP() << "no torchrun on this machine";
  std::vector<std::string> command = torchrun;
  command.push_back(program());
  ExpectRuns(command);
}

// Ranks of our own making, with the variables that a launcher would set.
class RanksByHand {
 public:
  void Start(const std::string& program, std::vector<std::string> environment) {
    ranks_.push_back(std::make_unique<ChildProcess>(
        std::vector<std::string>{program}, std::move(environment)));
  }

  // The output of all, once they have ended; expects success.
  std::string Out() {
    std::string out;
    for (const std::unique_ptr<ChildProcess>& rank : ranks_) {
      EXPECT_EQ(rank->Wait(kDeadline), 0) << rank->err();
      absl::StrAppend(&out, rank->out());
    }
    return out;
  }

 private:
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
};

TEST_P(LaunchersTest, EnvironmentOfSrun) {
  RanksByHand ranks;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::string> environment = Environment();
    environment.insert(
        environment.end(),
        {"SLURM_JOB_ID=7", "SLURM_STEP_ID=1", "SLURM_NTASKS=2",
         "SLURM_STEP_TASKS_PER_NODE=2", absl::StrCat("SLURM_PROCID=", rank),
         absl::StrCat("SLURM_LOCALID=", rank)});
    ranks.Start(program(), environment);
  }
  ExpectLines(ranks.Out(), 2);
  ExpectNothingLeft();
}

TEST_P(LaunchersTest, EnvironmentOfMpich) {
  RanksByHand ranks;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::string> environment = Environment();
    environment.insert(
        environment.end(),
        {absl::StrCat("PMI_RANK=", rank), "PMI_SIZE=2",
         absl::StrCat("MPI_LOCALRANKID=", rank), "MPI_LOCALNRANKS=2"});
    ranks.Start(program(), environment);
  }
  ExpectLines(ranks.Out(), 2);
  ExpectNothingLeft();
}

TEST_P(LaunchersTest, EnvironmentByHand) {
  RanksByHand ranks;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::string> environment = Environment();
    environment.insert(environment.end(),
                       {absl::StrCat("RANK=", rank), "WORLD_SIZE=2",
                        "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500"});
    ranks.Start(program(), environment);
  }
  ExpectLines(ranks.Out(), 2);
  ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(
    Programs, LaunchersTest,
    testing::Values(
        Program{"Rendezvous", "collectives/launch/testing/meet", "met r0,r1"},
        Program{"Group", "collectives/launch/testing/sum", "sum 3"}),
    [](const testing::TestParamInfo<Program>& info) {
      return info.param.name;
    });

}  // namespace
}  // namespace lockstep
