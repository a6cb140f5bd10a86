// What the flags of `launch` give to ranks, as the ranks see it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "collectives/launch/testing/child_process.h"
#include "collectives/usable_cores.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
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

}  // namespace
}  // namespace lockstep
