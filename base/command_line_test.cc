#include "base/command_line.h"

#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

ABSL_FLAG(int, test_number, 7,
          "a number, of which more is said here than fits in one line of the "
          "usage, for {whom}");
ABSL_FLAG(bool, test_switch, false, "a switch");
ABSL_FLAG(bool, test_prefix, true, "turned on by default");
ABSL_FLAG(std::string, a_flag_with_a_long_name, "value",
          "one of:\nvalue  the first of all the values that this flag may be "
          "set to\nother  another\nnone of them");
ABSL_FLAG(int, ranks, 2, "a flag of the command");
ABSL_FLAG(std::string, secret, "", "internal: not for users");

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::internal::CaptureStderr;
using testing::internal::CaptureStdout;
using testing::internal::GetCapturedStderr;
using testing::internal::GetCapturedStdout;

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

constexpr char kVariable[] = "BUILD_WORKING_DIRECTORY";

TEST(WorkingDirectoryTest, TakesRelativePathsFromWhereBazelWasRun) {
  setenv(kVariable, "/home/user", 1);
  EXPECT_EQ(UserPath("out"), "/home/user/out");
  EXPECT_EQ(UserPath("../out"), "/home/user/../out");
  EXPECT_EQ(UserPath("/out"), "/out");
  EXPECT_EQ(UserPath(""), "");
  unsetenv(kVariable);
}

TEST(WorkingDirectoryTest, LeavesPathsAloneWithoutBazel) {
  unsetenv(kVariable);
  for (const char* path : {"out", "/out", ""}) EXPECT_EQ(UserPath(path), path);
}

TEST(WorkingDirectoryTest, EntersOnce) {
  const std::filesystem::path before = std::filesystem::current_path();
  unsetenv(kVariable);
  EXPECT_THAT(EnterUserDirectory(), IsOk());
  EXPECT_EQ(std::filesystem::current_path(), before);
  setenv(kVariable, "/proc", 1);
  EXPECT_THAT(EnterUserDirectory(), IsOk());
  EXPECT_EQ(std::filesystem::current_path(), "/proc");
  EXPECT_EQ(getenv(kVariable), nullptr);
  std::filesystem::current_path(before);
}

TEST(WorkingDirectoryTest, NamesFolderThatIsNotThere) {
  setenv(kVariable, "/proc/no-such-folder", 1);
  EXPECT_THAT(
      EnterUserDirectory(),
      StatusIs(absl::StatusCode::kNotFound,
               HasSubstr("BUILD_WORKING_DIRECTORY=/proc/no-such-folder")));
  unsetenv(kVariable);
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

const NamedValues<int>& Numbers() {
  static const auto* const numbers =
      new NamedValues<int>{{"one", 1}, {"two", 2}};
  return *numbers;
}

TEST(ParseNameTest, TakesANameAndNothingElse) {
  EXPECT_THAT(ParseName("--n", "two", Numbers()), IsOkAndHolds(2));
  for (const char* text : {"", "tw", "twoo", "Two", "one,two"}) {
    EXPECT_THAT(ParseName("--n", text, Numbers()),
                StatusIs(kInvalid, absl::StrCat("--n: '", text,
                                                "' is not one of one, two")));
  }
}

TEST(ParseNamesTest, HasEachOnceInTheOrderGiven) {
  EXPECT_THAT(ParseNames("--n", "two,one,two", Numbers()),
              IsOkAndHolds(ElementsAre(2, 1)));
  EXPECT_THAT(ParseNames("--n", "one,", Numbers()),
              StatusIs(kInvalid, "--n: '' is not one of one, two"));
}

TEST(CheckRangeTest, IncludesItsEnds) {
  for (const int value : {2, 3, 4}) {
    EXPECT_THAT(CheckRange("--n", value, 2, 4), IsOk());
  }
  for (const int value : {1, 5}) {
    EXPECT_THAT(CheckRange("--n", value, 2, 4),
                StatusIs(kInvalid, absl::StrCat("--n: ", value,
                                                " is not between 2 and 4")));
  }
}

TEST(CheckSecondsTest, TakesWhatIsATime) {
  EXPECT_THAT(CheckSeconds("--t", 0.5), IsOk());
  for (const double value : {0.0, -1.0, 1e6, std::nan("")}) {
    EXPECT_THAT(
        CheckSeconds("--t", value),
        StatusIs(kInvalid, absl::StrCat("--t: ", value,
                                        " is not above 0 and below 1e+06")));
  }
}

TEST(FailTest, SaysWhatIsWrongAndTellsFlagsFromTheRest) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(Fail("sing", absl::InvalidArgumentError("--key: 'h'")), 2);
  EXPECT_EQ(Fail("sing", absl::NotFoundError("no voice")), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sing: --key: 'h'\nsing: no voice\n");
}

TEST(WrapTextTest, BreaksBetweenWordsOnly) {
  EXPECT_EQ(WrapText("", 5), "\n");
  EXPECT_EQ(WrapText("ab cd", 5), "ab cd\n");
  EXPECT_EQ(WrapText("ab cde", 5), "ab\ncde\n");
  EXPECT_EQ(WrapText("abcdefg hi  jk l", 5), "abcdefg\nhi jk\nl\n");
  EXPECT_EQ(WrapText("ab cde f gh", 7, 2), "ab\n  cde f\n  gh\n");
}

Usage ExampleUsage() {
  return {.command = "command",
          .introduction = "command [FLAGS]\n\nDoes something.\n",
          .sections = {{"numbers", "test_number ranks=N"},
                       {"", "test_switch notest_prefix"},
                       {"", "a_flag_with_a_long_name help"}},
          .ending = "Exit status: 0.\n",
          .words = {{"{whom}", "its user"}}};
}

TEST(UsageTextTest, ShowsEachFlagWithItsDefaultAndItsHelp) {
  EXPECT_THAT(UsageText(ExampleUsage()), IsOkAndHolds(R"(command [FLAGS]

Does something.

numbers
  --test_number=7          a number, of which more is said here than fits in one
                           line of the usage, for its user
  --ranks=N                a flag of the command

  --test_switch            a switch
  --notest_prefix          turned on by default

  --a_flag_with_a_long_name=value
                           one of:
                           value  the first of all the values that this flag may
                                  be set to
                           other  another
                           none of them
  --help                   this text

Exit status: 0.
)"));
}

TEST(UsageTextTest, NamesTheFlagThatIsListedOrDefinedAlone) {
  Usage usage = ExampleUsage();
  usage.sections.push_back({"", "notest_number"});
  EXPECT_THAT(UsageText(usage), StatusIs(absl::StatusCode::kInternal,
                                         "the usage lists --notest_number, "
                                         "which is not a flag"));
  usage.sections = ExampleUsage().sections;
  usage.sections[0].flags = "test_number";
  EXPECT_THAT(UsageText(usage), StatusIs(absl::StatusCode::kInternal,
                                         "the usage does not list --ranks"));
}

struct Began {
  std::optional<int> status;
  std::string out;
  std::string err;
};

Began Begin(std::vector<std::string> arguments,
            const Usage& usage = ExampleUsage(),
            std::vector<std::string>* command = nullptr) {
  arguments.insert(arguments.begin(), "/bin/program");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  CaptureStdout();
  CaptureStderr();
  Began began;
  began.status = BeginCommand(usage, argv, command);
  began.out = GetCapturedStdout();
  began.err = GetCapturedStderr();
  return began;
}

class BeginCommandTest : public testing::Test {
 private:
  absl::FlagSaver flags_;
};

TEST_F(BeginCommandTest, GoesOnWithTheFlagsSet) {
  const Began began = Begin({"--ranks=5"});
  EXPECT_EQ(began.status, std::nullopt);
  EXPECT_EQ(began.out + began.err, "");
  EXPECT_EQ(absl::GetFlag(FLAGS_ranks), 5);
}

TEST_F(BeginCommandTest, PrintsTheUsageForHelp) {
  const Began began = Begin({"--ranks=5", "--help"});
  EXPECT_EQ(began.status, 0);
  EXPECT_EQ(began.out, *UsageText(ExampleUsage()));
  EXPECT_EQ(began.err, "");
}

TEST_F(BeginCommandTest, FailsForHelpThatLacksAFlag) {
  Usage usage = ExampleUsage();
  usage.sections.pop_back();
  const Began began = Begin({"--help"}, usage);
  EXPECT_EQ(began.status, kFailure);
  EXPECT_EQ(began.out, "");
  EXPECT_THAT(began.err, HasSubstr("command: the usage does not list --"));
}

TEST_F(BeginCommandTest, HandsOnWhatFollowsTheFlags) {
  std::vector<std::string> command;
  EXPECT_EQ(Begin({"--ranks=5", "run", "-x"}, ExampleUsage(), &command).status,
            std::nullopt);
  EXPECT_THAT(command, ElementsAre("run", "-x"));
}

TEST_F(BeginCommandTest, NamesWhatIsNoFlag) {
  for (const std::string wrong : {"--rank=5", "--ranks=five", "ranks"}) {
    const Began began = Begin({wrong});
    EXPECT_EQ(began.status, kUsageError);
    EXPECT_EQ(began.out, "");
    EXPECT_EQ(began.err.find("command: "), 0u) << began.err;
    EXPECT_NE(began.err.find(wrong.substr(0, wrong.find('='))),
              std::string::npos)
        << began.err;
    EXPECT_EQ(began.err.find('\n'), began.err.size() - 1) << began.err;
  }
}

}  // namespace
}  // namespace lockstep
