// Runs a command of this project as its user would.
#include "base/run_command.h"

#include <sys/wait.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {

CommandOutcome RunCommand(const std::string& command, int deadline_seconds) {
  CommandOutcome outcome;
  FILE* const pipe = popen(
      absl::StrCat("exec timeout ", deadline_seconds, " ", command, " 2>&1")
          .c_str(),
      "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> buffer;
  size_t size;
  while ((size = fread(buffer.data(), 1, buffer.size(), pipe)) > 0) {
    outcome.output.append(buffer.data(), size);
  }
  const int status = pclose(pipe);
  outcome.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

// One line and the exit status.

void ExpectUsageError(const CommandOutcome& outcome, const std::string& program,
                      const std::string& flags, const std::string& expected) {
  EXPECT_EQ(outcome.exit_status, 2) << flags;
  EXPECT_THAT(outcome.output,
              testing::AllOf(testing::StartsWith(program + ": "),
                             testing::HasSubstr(expected)))
      << flags;
  EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1) << flags;
}

// Tries one interpreter after the other.
namespace {

constexpr int kImportSeconds = 60;

// The last line of what Python says of an exception names it.
absl::string_view LastLine(absl::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  const size_t end = text.rfind('\n');
  return end == absl::string_view::npos ? text : text.substr(end + 1);
}

}  // namespace

void RunPythonTest(const std::string& modules, const std::string& script,
                   int deadline_seconds) {
  std::string why;
  for (const char* python : {"python3", "/usr/bin/python3"}) {
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
    return;
  }
  GTEST_SKIP() << "no Python with " << modules << ": " << why;
}

}  // namespace lockstep
