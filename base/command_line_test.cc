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
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
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
ABSL_FLAG(absl::Duration, test_time, absl::Seconds(1), "a time");
ABSL_FLAG(std::string, secret, "", "internal: not for users");

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using testing::internal::CaptureStderr;
using testing::internal::CaptureStdout;
using testing::internal::GetCapturedStderr;
using testing::internal::GetCapturedStdout;

constexpr char kVariable[] = "BUILD_WORKING_DIRECTORY";

TEST(WorkingDirectoryTest, TakesRelativePathsFromWhereBazelWasRun) {
  setenv(kVariable, "/home/user", 1);
  EXPECT_EQ(ResolveUserPath("out"), "/home/user/out");
  EXPECT_EQ(ResolveUserPath("../out"), "/home/user/../out");
  EXPECT_EQ(ResolveUserPath("/out"), "/out");
  EXPECT_EQ(ResolveUserPath(""), "");
  unsetenv(kVariable);
  // The variable is not set without Bazel.
  for (const char* path : {"out", "/out", ""})
    EXPECT_EQ(ResolveUserPath(path), path);
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
  CaptureStderr();
  EXPECT_EQ(Fail("sing", absl::InvalidArgumentError("--key: 'h'")), 2);
  EXPECT_EQ(Fail("sing", absl::NotFoundError("no voice")), 1);
  EXPECT_EQ(GetCapturedStderr(), "sing: --key: 'h'\nsing: no voice\n");
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
          .sections = {{"numbers", "test_number ranks=N test_time"},
                       {"", "test_switch notest_prefix"},
                       {"", "a_flag_with_a_long_name help"}},
          .ending = "Exit status: 0.\n",
          .words = {{"{whom}", "its user"}},
          .aliases = {{"people", "ranks"}, {"head_count", "ranks"}}};
}

TEST(UsageTextTest, ShowsEachFlagWithItsDefaultAndItsHelp) {
  EXPECT_THAT(UsageText(ExampleUsage()), IsOkAndHolds(R"(command [FLAGS]

Does something.

numbers
  --test_number=7          a number, of which more is said here than fits in one
                           line of the usage, for its user
  --ranks=N                a flag of the command
                           also --people, --head_count
  --test_time=1s           a time

  --test_switch            a switch
  --notest_prefix          turned on by default

  --a_flag_with_a_long_name=value
                           one of:
                           value  the first of all the values that this flag may
                                  be set to
                           other  another
                           none of them
  --help                   print this text; also -h

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
  usage.sections[0].flags = "test_number test_time";
  EXPECT_THAT(UsageText(usage), StatusIs(absl::StatusCode::kInternal,
                                         "the usage does not list --ranks"));
}

TEST(UsageTextTest, RefusesAnAliasThatIsAFlagOrOfNone) {
  Usage usage = ExampleUsage();
  usage.aliases = {{"test_switch", "ranks"}};
  EXPECT_THAT(UsageText(usage),
              StatusIs(absl::StatusCode::kInternal,
                       "the usage's alias --test_switch is a flag"));
  usage.aliases = {{"people", "nobody"}};
  EXPECT_THAT(UsageText(usage),
              StatusIs(absl::StatusCode::kInternal,
                       "the usage's alias --people stands for "
                       "--nobody, which is not a flag"));
}

TEST(FlagNameTest, HasUnderscoresAndNoValue) {
  EXPECT_EQ(FlagName("--node-rank=a-b=c"), "node_rank");
  EXPECT_EQ(FlagName("-node_rank"), "node_rank");
  for (const char* other : {"", "-", "--", "node_rank=1"}) {
    EXPECT_EQ(FlagName(other), "") << other;
  }
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

TEST_F(BeginCommandTest, TakesEveryWayToWriteFlagsUpToTheCommand) {
  const struct {
    std::vector<std::string> arguments;
    std::vector<std::string> command;
    int number;
    bool is_on;
  } kCases[] = {
      {{"--test_number=3", "--", "run", "--test_number=4", "--"},
       {"run", "--test_number=4", "--"},
       3,
       false},
      {{"--test_switch", "run", "--other", "-x"},
       {"run", "--other", "-x"},
       0,
       true},
      {{"--test_number", "5", "--test_switch=true"}, {}, 5, true},
      {{"-test_number=6", "--test_switch", "--notest_switch"}, {}, 6, false},
      {{"-"}, {"-"}, 0, false},
  };
  for (const auto& test : kCases) {
    absl::SetFlag(&FLAGS_test_number, 0);
    absl::SetFlag(&FLAGS_test_switch, false);
    std::vector<std::string> command;
    const Began began = Begin(test.arguments, ExampleUsage(), &command);
    EXPECT_EQ(began.status, std::nullopt);
    EXPECT_EQ(began.out + began.err, "");
    EXPECT_EQ(command, test.command);
    EXPECT_EQ(absl::GetFlag(FLAGS_test_number), test.number);
    EXPECT_EQ(absl::GetFlag(FLAGS_test_switch), test.is_on);
  }
}

TEST_F(BeginCommandTest, GoesOnWithTheFlagsSet) {
  EXPECT_EQ(Begin({"--ranks=5"}).status, std::nullopt);
  EXPECT_EQ(absl::GetFlag(FLAGS_ranks), 5);
}

TEST_F(BeginCommandTest, TakesAliasesAndDashesAsItTakesTheFlag) {
  const std::vector<std::vector<std::string>> kCases = {
      {"--people=5"},
      {"--people", "5"},
      {"-people=5"},
      {"-people", "5"},
      {"--head-count=5"},
      {"-head-count", "5"},
      {"--head_count=4", "--head-count", "5"},
      {"--test-number=3", "--ranks=5"},
  };
  for (const std::vector<std::string>& arguments : kCases) {
    absl::SetFlag(&FLAGS_ranks, 0);
    const Began began = Begin(arguments);
    EXPECT_EQ(began.status, std::nullopt) << began.err;
    EXPECT_EQ(absl::GetFlag(FLAGS_ranks), 5) << arguments[0];
  }
}

// The value of a flag and the command's own flags are not replaced.
TEST_F(BeginCommandTest, TakesNoAliasWhereThereIsNoFlag) {
  std::vector<std::string> command;
  const std::vector<std::string> run = {"run", "--people=4", "--head-count"};
  std::vector<std::string> arguments = {"--a-flag-with-a-long-name", "--people",
                                        "--people", "5"};
  arguments.insert(arguments.end(), run.begin(), run.end());
  EXPECT_EQ(Begin(arguments, ExampleUsage(), &command).status, std::nullopt);
  EXPECT_EQ(absl::GetFlag(FLAGS_a_flag_with_a_long_name), "--people");
  EXPECT_EQ(absl::GetFlag(FLAGS_ranks), 5);
  EXPECT_EQ(command, run);
}

TEST_F(BeginCommandTest, ReadsWhatAProgramAddsToItsUsersFlags) {
  const Began began = Begin({"--people=4", "--secret=s", "--ranks=5"});
  EXPECT_EQ(began.status, std::nullopt) << began.err;
  EXPECT_EQ(absl::GetFlag(FLAGS_ranks), 5);
}

TEST_F(BeginCommandTest, NamesFlagAtFault) {
  const struct {
    std::vector<std::string> arguments;
    const char* named;
  } kCases[] = {
      {{"--unknown=1", "run"}, "--unknown is not a flag; see --help"},
      {{"--unknown", "run"}, "--unknown "},
      {{"--nounknown"}, "--nounknown "},
      {{"--notest_number"}, "--notest_number "},
      {{"--test_number=many"}, "--test_number=many"},
      {{"--test_number", "many"}, "--test_number=many"},
      {{"--test_switch=perhaps"}, "--test_switch=perhaps"},
      {{"--test_number"}, "--test_number needs a value"},
      {{"--test_number", "--", "run"}, "--test_number needs a value"},
      {{"run"}, "'run' is not a flag"},
      {{"--", "run"}, "'run' is not a flag"},
      {{"--rank=5"}, "--rank is not a flag; did you mean --ranks?"},
      {{"--test-nubmer", "5"}, "did you mean --test_number?"},
      {{"--head-cuont=5"}, "did you mean --head_count?"},
      {{"--peopel", "5"}, "--peopel is not a flag; did you mean --people?"},
      {{"--people"}, "--people needs a value"},
      {{"--people=five"}, "--ranks=five"},
      {{"--nopeople"}, "--nopeople is not a flag; did you mean --people?"},
      {{"--people=5", "--ranks", "5"},
       "--people and --ranks are one flag; give only one of them"},
      {{"--head-count", "5", "-people=6"}, "--head_count and --people are one"},
      {{"-test_nubmer=5"},
       "--test_nubmer is not a flag; did you mean --test_n"},
      {{"--notest_swich"}, "did you mean --notest_switch?"},
      {{"--secre"}, "--secre is not a flag; see --help"},
      {{"-b"}, "-b is not a flag, or needs a value; see --help"},
      {{"-b", "5"}, "command: -b is not a flag, or needs a value"},
      {{"--test_time=5"}, "--test_time=5 has no unit; write 5s or 5m"},
      {{"--test_time", "0.5"}, "--test_time=0.5 has no unit; write 0.5s or 5m"},
      {{"--test_time=soon"}, "--test_time=soon: "},
      {{"--ranks=five"}, "--ranks=five"},
  };
  for (const auto& test : kCases) {
    const Began began = Begin(test.arguments);
    EXPECT_EQ(began.status, kUsageError);
    EXPECT_EQ(began.out, "");
    EXPECT_THAT(began.err,
                AllOf(StartsWith("command: "), HasSubstr(test.named)));
    EXPECT_EQ(began.err.find('\n'), began.err.size() - 1) << began.err;
  }
}

TEST_F(BeginCommandTest, PrintsTheUsageForHelp) {
  for (const char* help : {"--help", "-h", "-help"}) {
    const Began began = Begin({"--ranks=5", help});
    EXPECT_EQ(began.status, 0);
    EXPECT_EQ(began.out, *UsageText(ExampleUsage()));
    EXPECT_EQ(began.err, "");
  }
}

TEST_F(BeginCommandTest, FailsForHelpThatLacksAFlag) {
  Usage usage = ExampleUsage();
  usage.sections.pop_back();
  const Began began = Begin({"--help"}, usage);
  EXPECT_EQ(began.status, kFailure);
  EXPECT_EQ(began.out, "");
  EXPECT_THAT(began.err, HasSubstr("command: the usage does not list --"));
}

}  // namespace
}  // namespace lockstep
