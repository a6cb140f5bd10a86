// collectives_test for the `mpi` backend, whose ranks mpirun starts.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/mpi/testing/mpirun.h"
#include "conformance/collectives/collective_checker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;

class CollectivesMpiTest : public testing::TestWithParam<int> {};

TEST_P(CollectivesMpiTest, GiveWhatTheReferenceGives) {
  if (!WhyNoMpirun().empty()) GTEST_SKIP() << WhyNoMpirun();
  const auto statuses = RunMpiRanks(GetParam(), [](Communicator& communicator) {
    return CheckCollectives(communicator, Memory::kOrdinary);
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, CollectivesMpiTest,
                         testing::Values(1, 2, 3, 5, 8), [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

}  // namespace
}  // namespace lockstep
