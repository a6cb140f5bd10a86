#include "collectives/launch/command_line.h"

#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

ABSL_FLAG(int, test_number, 0, "a number");
ABSL_FLAG(bool, test_switch, false, "a switch");

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

absl::StatusOr<std::vector<std::string>> Parse(
    std::vector<std::string> arguments) {
  absl::SetFlag(&FLAGS_test_number, 0);
  absl::SetFlag(&FLAGS_test_switch, false);
  return ParseFlagsBeforeCommand(arguments);
}

TEST(CommandLineTest, StopsAtTwoDashes) {
  EXPECT_THAT(Parse({"--test_number=3", "--", "run", "--test_number=4", "--"}),
              IsOkAndHolds(ElementsAre("run", "--test_number=4", "--")));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_number), 3);
}

TEST(CommandLineTest, StopsAtCommand) {
  EXPECT_THAT(Parse({"--test_switch", "run", "--other", "-x"}),
              IsOkAndHolds(ElementsAre("run", "--other", "-x")));
  EXPECT_TRUE(absl::GetFlag(FLAGS_test_switch));
}

TEST(CommandLineTest, TakesEveryWayToWriteFlags) {
  EXPECT_THAT(Parse({"--test_number", "5", "--test_switch=true"}),
              IsOkAndHolds(IsEmpty()));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_number), 5);
  EXPECT_TRUE(absl::GetFlag(FLAGS_test_switch));
  EXPECT_THAT(Parse({"-test_number=6", "--test_switch", "--notest_switch"}),
              IsOkAndHolds(IsEmpty()));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_number), 6);
  EXPECT_FALSE(absl::GetFlag(FLAGS_test_switch));
}

TEST(CommandLineTest, NamesFlagAtFault) {
  const struct {
    std::vector<std::string> arguments;
    const char* named;
  } kCases[] = {
      {{"--unknown=1", "run"}, "--unknown "},
      {{"--unknown", "run"}, "--unknown "},
      {{"--nounknown"}, "--nounknown "},
      {{"--notest_number"}, "--notest_number "},
      {{"--test_number=many"}, "--test_number=many"},
      {{"--test_number", "many"}, "--test_number=many"},
      {{"--test_switch=perhaps"}, "--test_switch=perhaps"},
      {{"--test_number"}, "--test_number needs a value"},
      {{"--test_number", "--", "run"}, "--test_number needs a value"},
      {{"-"}, nullptr},
  };
  for (const auto& test : kCases) {
    const auto result = Parse(test.arguments);
    if (test.named == nullptr) {
      EXPECT_THAT(result, IsOkAndHolds(ElementsAre("-")));
    } else {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr(test.named)));
    }
  }
}

}  // namespace
}  // namespace lockstep
