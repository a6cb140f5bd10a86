// The command `check`, on trainers of the suite's own that need no Python.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/subprocess.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr absl::Duration kDeadline = absl::Minutes(2);

SubprocessResult RunCheck(std::vector<std::string> flags,
                          const Environment& environment = {}) {
  flags.insert(flags.begin(), "conformance/check/check");
  return RunSubprocess(flags, kDeadline, {.environment = environment});
}

std::string OutputDir() {
  const testing::TestInfo* const test =
      testing::UnitTest::GetInstance()->current_test_info();
  return absl::StrCat(testing::TempDir(), "/", test->name());
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(CheckTest, TheProjectsOwnTrainerHolds) {
  const std::string folder = OutputDir();
  const SubprocessResult result = RunCheck(
      {"--trainer=lockstep", "--world_size=3", "--output_dir=" + folder});
  EXPECT_EQ(result.exit_status, 0) << result.out << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  EXPECT_THAT(result.out, HasSubstr("Lockstep: 3 ranks against 1"));
  EXPECT_THAT(result.out, HasSubstr(", 0 fail"));
  for (const absl::string_view line : absl::StrSplit(result.out, '\n')) {
    if (absl::StrContains(line, folder)) continue;  // It has a long path.
    EXPECT_LE(line.size(), 100u) << line;
  }
  const auto json =
      nlohmann::json::parse(ReadText(folder + "/check.json"), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_GE(json["totals"]["passed"], 6);
  EXPECT_EQ(json["totals"]["failed"], 0);
  EXPECT_THAT(ReadText(folder + "/check.md"), HasSubstr("| even |"));
  EXPECT_THAT(ReadText(folder + "/check.html"), HasSubstr("</html>"));
}

// Each is `check` with a trainer that does not keep to the protocol.
TEST(CheckTest, ABadTrainerGetsAVerdict) {
  const struct {
    const char* command;
    const char* says;
  } kTrainers[] = {
      {"exec sleep 1000", "(hangs)"},
      {"trap '' TERM; while :; do sleep 1000; done", "(hangs)"},
      {"echo broken on purpose; exit 3", "broken on purpose"},
      {"kill -SEGV $$", "(crashes)"},
      {"/no/such/trainer", "(crashes)"},
      {"true", "(writes_nothing)"},
      {"head -c 999 /dev/urandom > $LOCKSTEP_OUTPUT/rank0.json",
       "(writes_garbage)"},
      {"mkfifo $LOCKSTEP_OUTPUT/rank0.json", "(writes_garbage)"},
      {"echo '{' > $LOCKSTEP_OUTPUT/rank0.json", "(writes_garbage)"},
      {"yes | head -c 30000000; exit 1", "(crashes)"},
  };
  for (const auto& trainer : kTrainers) {
    const SubprocessResult result =
        RunCheck({absl::StrCat("--command=", trainer.command), "--cases=even",
                  "--timeout=1", "--output_dir=" + OutputDir()});
    EXPECT_EQ(result.exit_status, 1) << trainer.command;
    EXPECT_THAT(result.err, IsEmpty()) << trainer.command;
    EXPECT_THAT(result.out,
                AllOf(HasSubstr("even, run: failed"), HasSubstr(trainer.says)))
        << trainer.command;
    EXPECT_THAT(result.out, HasSubstr("0 cases hold, 1 fails."));
  }
}

TEST(CheckTest, ATrainerThatSupportsNoCaseIsSkipped) {
  const SubprocessResult result = RunCheck(
      {R"(--command=echo '{"protocol": 1, "rank": '$RANK', "world_size": )"
       R"('$WORLD_SIZE', "unsupported": "no such model"}' )"
       R"(> $LOCKSTEP_OUTPUT/rank$RANK.json)",
       "--cases=even,sync_bn", "--output_dir=" + OutputDir()});
  EXPECT_EQ(result.exit_status, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("no such model"));
  EXPECT_THAT(result.out, HasSubstr("0 cases hold, 0 fail, 2 skipped."));
}

TEST(CheckTest, ListsTheCases) {
  const SubprocessResult result = RunCheck({"--list"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_THAT(result.out, AllOf(StartsWith("even "), HasSubstr("\nsync_bn "),
                                HasSubstr("\nbfloat16 ")));
}

TEST(CheckTest, HelpSaysEveryFlag) {
  const SubprocessResult result = RunCheck({"--help"});
  EXPECT_EQ(result.exit_status, 0);
  for (const char* flag :
       {"--command=", "--trainer=", "--python=", "--world_size=", "--cases=",
        "--timeout=", "--documented=", "--output_dir=", "--list"}) {
    EXPECT_THAT(result.out, HasSubstr(flag));
  }
  for (const absl::string_view line : absl::StrSplit(result.out, '\n')) {
    EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST(CheckTest, AWrongFlagIsOneLine) {
  const std::string documented = OutputDir() + ".json";
  std::ofstream(documented) << "[1]";
  const struct {
    const char* flag;
    int status;
    const char* says;
  } kFlags[] = {
      {"--world_size=1", 2, "--world_size is 1, must be in [2, 64]"},
      {"--world_size=65", 2, "--world_size is 65"},
      {"--world_size=two", 2, "--world_size"},
      {"--cases=even,odd", 2, "--cases: there is no 'odd'; there are even, "},
      {"--trainer=jax", 2, "--trainer: there is no 'jax'; there are pytorch"},
      {"--command=", 2, "--command is empty"},
      {"--timeout=0", 2, "--timeout is 0 s, must be in [0.1, 86400]"},
      {"--timeout=nan", 2, "--timeout is nan s"},
      {"--documented=/no/such/file", 2, "--documented: /no/such/file"},
      {"--output_dir=/proc/none", 2, "--output_dir"},
      {"--no_such_flag", 2, "no_such_flag"},
      {"stray", 2, "stray"},
  };
  for (const auto& flag : kFlags) {
    const SubprocessResult result = RunCheck({flag.flag});
    EXPECT_EQ(result.exit_status, flag.status) << flag.flag << result.err;
    EXPECT_THAT(result.err, AllOf(StartsWith("check: "), HasSubstr(flag.says)))
        << flag.flag;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
    EXPECT_THAT(result.out, IsEmpty()) << flag.flag;
  }
  const SubprocessResult result = RunCheck({"--documented=" + documented});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.err, AllOf(StartsWith("check: "), HasSubstr("[0]")));
}

// Nothing of a run stays in the folder for temporary files.
TEST(CheckTest, LeavesNothingBehind) {
  const std::string folder = OutputDir() + "_tmp";
  std::filesystem::create_directories(folder);
  const SubprocessResult result = RunCheck(
      {"--command=true", "--cases=even", "--output_dir=" + OutputDir()},
      {{"TMPDIR", folder}});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace lockstep
