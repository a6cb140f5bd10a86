// The same program as the ranks of our launcher, of torchrun, of mpirun and, as
// far as its environment goes, of srun. A launcher that this machine does not
// have is a skip that says so.
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "collectives/launch/testing/child_process.h"
#include "collectives/launch/testing/find_launchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

constexpr char kLaunch[] = "collectives/launch/launch";

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
