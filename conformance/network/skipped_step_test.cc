// A rank that leaves a step out is found within the group's deadline.
#include <string>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "conformance/network/network_mutants.h"
#include "conformance/network/network_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

TEST(SkippedStepTest, EndsEveryRankWithinTheDeadline) {
  const NetworkRun run = {
      .deal = {8, 0}, .steps = 1, .timeout = absl::Seconds(3)};
  const absl::Time start = absl::Now();
  NetworkTrace trace;
  const auto statuses = RunNetworkRanks(run, SkipWhereEmpty(), trace);
  EXPECT_LT(absl::Now() - start, absl::Seconds(60));
  ASSERT_EQ(statuses.size(), 2);
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.code(), AnyOf(absl::StatusCode::kDeadlineExceeded,
                                     absl::StatusCode::kUnavailable,
                                     absl::StatusCode::kFailedPrecondition))
        << status;
  }
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("rank 1"));
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("rank 0"));
}

}  // namespace
}  // namespace lockstep
