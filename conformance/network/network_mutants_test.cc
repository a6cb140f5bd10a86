// Every planted bug is rejected by exactly the checks that are there for it,
// with a message that names the right thing; every check rejects some bug; and
// a rank that leaves a step out is found within the group's deadline.
#include "conformance/network/network_mutants.h"

#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "conformance/network/network_checks.h"
#include "conformance/network/network_run.h"
#include "conformance/network/plant_mutant.h"
#include "conformance/rejection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {

// How a failing test shows its parameter.
void PrintTo(const NetworkMutant& mutant, std::ostream* out) {
  *out << mutant.bug;
}

namespace {

using testing::AnyOf;
using testing::HasSubstr;

TEST(NetworkMutantsTest, EveryCheckHasAMutantAndEveryMutantACheck) {
  std::set<std::string> rejecting, names;
  for (const NetworkMutant& mutant : NetworkMutants()) {
    EXPECT_TRUE(names.insert(mutant.name).second) << mutant.name << " twice";
    EXPECT_TRUE(mutant.caught_by.count(mutant.check)) << mutant.name;
    EXPECT_FALSE(mutant.says.empty()) << mutant.name;
    rejecting.insert(mutant.caught_by.begin(), mutant.caught_by.end());
  }
  const std::vector<std::string> checks = NetworkCheckNames();
  EXPECT_EQ(rejecting, std::set<std::string>(checks.begin(), checks.end()));
}

class NetworkMutantTest : public testing::TestWithParam<NetworkMutant> {};

TEST_P(NetworkMutantTest, IsRejectedByTheChecksThatAreThereForIt) {
  const auto rejections = PlantNetworkMutant(GetParam());
  ASSERT_THAT(rejections, IsOk());
  std::set<std::string> checks;
  std::string messages, says;
  for (const Rejection& rejection : *rejections) {
    checks.insert(rejection.check);
    absl::StrAppend(&messages, rejection.check, ": ", rejection.message, "\n");
    if (rejection.check == GetParam().check) says = rejection.message;
  }
  EXPECT_EQ(checks, GetParam().caught_by) << GetParam().bug << "\n" << messages;
  EXPECT_THAT(says, HasSubstr(GetParam().says)) << GetParam().bug;
  RecordProperty("messages", messages);
}

INSTANTIATE_TEST_SUITE_P(All, NetworkMutantTest,
                         testing::ValuesIn(NetworkMutants()),
                         [](const auto& info) { return info.param.name; });

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
