// Runs the same test binary as the ranks of each launcher. LaunchedGroupTest
// checks the group of all ranks that a launcher has started:
//
//   bazel run //collectives:launch -- --nproc=3 -- <this test> FILTER
//   mpirun -n 3 <this test> FILTER
//   torchrun --no-python --nproc-per-node=3 <this test> FILTER
//
// Here FILTER is --gtest_filter=LaunchedGroupTest.*; LaunchersTest starts the
// binary in these ways. If this machine does not have a launcher, the test
// skips and says so. The ranks form a group of the `processes` backend, or with
// LOCKSTEP_BACKEND=mpi of the `mpi` backend. Started alone, the binary is a
// group of one.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/subprocess.h"
#include "collectives/communicator.h"
#include "collectives/groups/create_group.h"
#include "collectives/groups/rank_environment.h"
#include "collectives/host/host_group.h"
#include "collectives/launch/testing/child_process.h"
#include "conformance/collectives/collective_checker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#ifdef LOCKSTEP_HAS_MPI
#include "collectives/mpi/mpi_group.h"
#include "conformance/collectives/collective_mutants.h"
#endif

namespace lockstep::conformance {
namespace {

using testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Communicator>> Join() {
  const char* const backend = std::getenv("LOCKSTEP_BACKEND");
  const std::string name = backend == nullptr ? "processes" : backend;
  if (name == "processes") {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::optional<RankEnvironment> environment,
                              ReadRankEnvironment());
    if (environment.has_value()) return JoinLaunchedGroup(*environment);
    LOCKSTEP_ASSIGN_OR_RETURN(auto alone, CreateThreadGroup(1));
    return std::move(alone[0]);
  }
#ifdef LOCKSTEP_HAS_MPI
  if (name == "mpi") return JoinMpiGroup();
#endif
  return absl::InvalidArgumentError(absl::StrCat(
      "LOCKSTEP_BACKEND is '", name, "', which is no backend here"));
}

TEST(LaunchedGroupTest, GivesWhatTheReferenceGives) {
  const absl::StatusOr<std::unique_ptr<Communicator>> group = Join();
  ASSERT_THAT(group, IsOk());
  EXPECT_THAT(CheckCollectives(**group, Memory::kOrdinary), IsOk());
  EXPECT_THAT(CheckCollectives(**group, Memory::kGroup), IsOk());
  // The control: the check rejects a group that loses the last element.
  EXPECT_THAT(CheckCollectives(*LoseTail(**group), Memory::kOrdinary),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("AllReduce")));
}

constexpr absl::Duration kDeadline = absl::Seconds(100);

std::vector<std::string> RankCommand() {
  return {std::filesystem::read_symlink("/proc/self/exe").string(),
          "--gtest_filter=LaunchedGroupTest.*", "--gtest_color=no"};
}

void ExpectPasses(std::vector<std::string> command, int ranks,
                  const std::string& backend = "processes") {
  for (const std::string& part : RankCommand()) command.push_back(part);
  // The rank must not write a report of its own, because Bazel expects this
  // test's report there.
  const SubprocessResult result = RunSubprocess(
      command, kDeadline,
      {.environment = {{"LOCKSTEP_BACKEND", backend}, {"GTEST_OUTPUT", ""}}});
  EXPECT_EQ(result.exit_status, 0) << result.out << result.err;
  int passed = 0;
  const std::string& out = result.out;
  for (size_t at = 0; (at = out.find("[  PASSED  ] 1 test", at)) != out.npos;
       ++at) {
    ++passed;
  }
  EXPECT_EQ(passed, ranks);
}

TEST(LaunchersTest, OurOwn) {
  ExpectPasses({"collectives/launch/launch", "--nproc=3", "--"}, 3);
}

TEST(LaunchersTest, MpirunWithEitherBackend) {
  const std::vector<std::string> mpirun = FindMpirun(3);
  if (mpirun.empty()) GTEST_SKIP() << "no mpirun of Open MPI on this machine";
  ExpectPasses(mpirun, 3);
  ExpectPasses(mpirun, 3, "mpi");
}

TEST(LaunchersTest, Torchrun) {
  const std::vector<std::string> torchrun = FindTorchrun(3);
  if (torchrun.empty()) GTEST_SKIP() << "no torchrun on this machine";
  ExpectPasses(torchrun, 3);
}

// The control: the failure of a rank is seen.
TEST(LaunchersTest, AFailureIsSeen) {
  std::vector<std::string> command = {"collectives/launch/launch", "--nproc=2",
                                      "--"};
  for (const std::string& part : RankCommand()) command.push_back(part);
  const SubprocessResult result = RunSubprocess(
      command, kDeadline,
      {.environment = {{"LOCKSTEP_BACKEND", "none"}, {"GTEST_OUTPUT", ""}}});
  EXPECT_NE(result.exit_status, 0);
  EXPECT_TRUE(absl::StrContains(result.out, "which is no backend here"));
}

}  // namespace
}  // namespace lockstep::conformance
