// The same test binary as the ranks of each launcher. A launcher that this
// machine does not have is a skip that says so.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/launch/testing/child_process.h"
#include "collectives/launch/testing/find_launchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(100);

std::string TestBinary() {
  return std::filesystem::absolute(
             "conformance/collectives/launched_group_test")
      .string();
}

void ExpectPasses(std::vector<std::string> command, int ranks,
                  const std::string& variable = "LOCKSTEP_BACKEND=processes") {
  command.push_back(TestBinary());
  // No report of a rank's own, where Bazel expects that of this test.
  ChildProcess launcher(command, {variable, "GTEST_OUTPUT="});
  EXPECT_EQ(launcher.Wait(kDeadline), 0) << launcher.out() << launcher.err();
  int passed = 0;
  const std::string& out = launcher.out();
  for (size_t at = 0; (at = out.find("[  PASSED  ] 1 test", at)) != out.npos;
       ++at) {
    ++passed;
  }
  EXPECT_EQ(passed, ranks);
}

TEST(LaunchersTest, OurOwn) {
  ExpectPasses({"collectives/launch/launch", "--nproc=3", "--"}, 3);
}

TEST(LaunchersTest, Mpirun) {
  const std::vector<std::string> mpirun = FindMpirun(3);
  if (mpirun.empty()) GTEST_SKIP() << "no mpirun of Open MPI on this machine";
  ExpectPasses(mpirun, 3);
}

TEST(LaunchersTest, MpirunWithTheMpiBackend) {
  const std::vector<std::string> mpirun = FindMpirun(3);
  if (mpirun.empty()) GTEST_SKIP() << "no mpirun of Open MPI on this machine";
  ExpectPasses(mpirun, 3, "LOCKSTEP_BACKEND=mpi");
}

TEST(LaunchersTest, Torchrun) {
  const std::vector<std::string> torchrun = FindTorchrun(3);
  if (torchrun.empty()) GTEST_SKIP() << "no torchrun on this machine";
  ExpectPasses(torchrun, 3);
}

// The control: a rank that fails is seen.
TEST(LaunchersTest, AFailureIsSeen) {
  ChildProcess launcher(
      {"collectives/launch/launch", "--nproc=2", "--", TestBinary()},
      {"LOCKSTEP_BACKEND=none", "GTEST_OUTPUT="});
  EXPECT_NE(launcher.Wait(kDeadline), 0);
  EXPECT_TRUE(absl::StrContains(launcher.out(), "which is no backend here"));
}

}  // namespace
}  // namespace lockstep
