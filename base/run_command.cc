#include "base/run_command.h"

#include <pwd.h>
#include <unistd.h>

#include <cstddef>
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

namespace lockstep {
namespace {

constexpr int kImportSeconds = 60;

// Returns the last line of `text`. In Python's report of an exception, this
// line names the exception.
absl::string_view LastLine(absl::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  const size_t end = text.rfind('\n');
  return end == absl::string_view::npos ? text : text.substr(end + 1);
}

// Returns the Pythons in the order in which they are tried. Bazel's tests have
// no HOME, so the user's folder comes from the password file.
std::vector<std::string> PythonsFor(const std::string& modules) {
  std::vector<std::string> pythons = {"python3", "/usr/bin/python3"};
  const passwd* const user = getpwuid(getuid());
  if (absl::StrContains(modules, "timm") && user != nullptr) {
    pythons.insert(
        pythons.begin(),
        absl::StrCat(user->pw_dir, "/.cache/lockstep/venv/bin/python3"));
  }
  return pythons;
}

}  // namespace

CommandOutcome RunCommand(const std::string& command, int deadline_seconds) {
  const SubprocessResult result =
      RunSubprocess({"/bin/sh", "-c", absl::StrCat("exec ", command)},
                    absl::Seconds(deadline_seconds), {.merge_error = true});
  return {result.exit_status, result.out};
}

void ExpectUsageError(const CommandOutcome& outcome, const std::string& program,
                      const std::string& flags, const std::string& expected) {
  EXPECT_EQ(outcome.exit_status, 2) << flags;
  EXPECT_THAT(outcome.output,
              testing::AllOf(testing::StartsWith(program + ": "),
                             testing::HasSubstr(expected)))
      << flags;
  EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1) << flags;
}

void ExpectUsage(const CommandOutcome& outcome, const std::string& program,
                 size_t columns) {
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_THAT(outcome.output,
              testing::AllOf(testing::StartsWith(program + " "),
                             testing::HasSubstr("\nExit status: "),
                             testing::Not(testing::HasSubstr("internal"))));
  for (const absl::string_view line : absl::StrSplit(outcome.output, '\n')) {
    EXPECT_LE(line.size(), columns) << line;
  }
}

void ExpectChecksFlags(
    const std::string& program,
    const std::function<CommandOutcome(const std::string& flags)>& run,
    const std::vector<std::pair<std::string, std::string>>& cases,
    size_t columns) {
  for (const auto& [flags, expected] : cases) {
    ExpectUsageError(run(flags), program, flags, expected);
  }
  ExpectUsage(run("--help"), program, columns);
}

std::string RunPythonTest(const std::string& modules, const std::string& script,
                          int deadline_seconds) {
  std::string why;
  for (const std::string& python : PythonsFor(modules)) {
    const CommandOutcome found = RunCommand(
        absl::StrCat(python, " -c 'import ", modules, "'"), kImportSeconds);
    if (found.exit_status != 0) {
      absl::StrAppend(&why, why.empty() ? "" : "; ", python, ": ",
                      LastLine(found.output));
      continue;
    }
    const CommandOutcome outcome =
        RunCommand(absl::StrCat(python, " ", script), deadline_seconds);
    EXPECT_EQ(outcome.exit_status, 0) << python << ": " << outcome.output;
    return outcome.output;
  }
  // GTEST_SKIP returns from a function that has no result.
  [&] { GTEST_SKIP() << "no Python with " << modules << ": " << why; }();
  return "";
}

}  // namespace lockstep
