// collectives_test for the `mpi` backend, whose ranks mpirun starts.
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/algorithm.h"
#include "collectives/communicator.h"
#include "collectives/mpi/testing/mpirun.h"
#include "conformance/collectives/collective_checker.h"
#include "conformance/collectives/collective_claims.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;

class CollectivesMpiTest
    : public testing::TestWithParam<std::tuple<int, Algorithm>> {};

TEST_P(CollectivesMpiTest, GiveWhatTheReferenceGives) {
  CollectiveClaims claims("mpi", std::get<0>(GetParam()));
  if (!WhyNoMpirun().empty()) GTEST_SKIP() << WhyNoMpirun();
  MpiRunOptions options;
  options.group.algorithm = std::get<1>(GetParam());
  options.deadline = absl::Minutes(5);  // As in collectives_test.
  const auto asked = RunMpiRanksCollect(
      std::get<0>(GetParam()),
      [](Communicator& communicator) {
        return CheckCollectives(communicator, Memory::kOrdinary);
      },
      options);
  EXPECT_THAT(asked, Each(IsOk()));
  claims.Add(asked);
}

INSTANTIATE_TEST_SUITE_P(Groups, CollectivesMpiTest,
                         testing::Combine(testing::Values(1, 2, 3, 5, 8),
                                          testing::Values(Algorithm::kAuto,
                                                          Algorithm::kRing,
                                                          Algorithm::kTree)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<1>(info.param)),
                                               "P", std::get<0>(info.param));
                         });

}  // namespace
}  // namespace lockstep
