// The suite on the group of all ranks that a launcher started with this one:
//
//   bazel run //collectives:launch -- --nproc=3 -- <this test>
//   mpirun -n 3 <this test>
//   torchrun --no-python --nproc-per-node=3 <this test>
//
// They form a group of the `processes` backend, or with LOCKSTEP_BACKEND=mpi of
// the `mpi` backend. Started alone, it is a group of one.
#include "collectives/launch/launched_group.h"

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/host/host_group.h"
#include "collectives/launch/rank_environment.h"
#include "conformance/collectives/collective_checker.h"
#include "conformance/collectives/collective_mutants.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#ifdef LOCKSTEP_HAS_MPI
#include "collectives/mpi/mpi_group.h"
#endif

namespace lockstep {
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
  // The control.
  FaultyCommunicator faulty(**group, CollectiveFault::kLostTail);
  EXPECT_THAT(CheckCollectives(faulty, Memory::kOrdinary),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("AllReduce")));
}

}  // namespace
}  // namespace lockstep
