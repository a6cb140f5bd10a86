// For tests of this project's commands: runs a command as its user would.
#ifndef LOCKSTEP_BASE_RUN_COMMAND_H_
#define LOCKSTEP_BASE_RUN_COMMAND_H_

#include <cstddef>
#include <string>

namespace lockstep {

struct CommandOutcome {
  int exit_status = -1;  // As of SubprocessResult: -1 past the deadline.
  std::string output;    // Standard output and error together.
};

// `command`, a path and flags, as the shell reads them.
CommandOutcome RunCommand(const std::string& command, int deadline_seconds);

// Expects exit status 2, and of the output that it is one line, which begins
// with the program's name and has `expected` in it. `flags` names the case.
void ExpectUsageError(const CommandOutcome& outcome, const std::string& program,
                      const std::string& flags, const std::string& expected);

// Expects what `program` --help prints: a usage that begins with the program's
// name, which says its exit statuses, has no line beyond `columns`, and tells
// of no internal flag. That it tells of every other flag is UsageText's part.
void ExpectUsage(const CommandOutcome& outcome, const std::string& program,
                 size_t columns = 80);

// For Python's unit tests.
//
// Runs `script`, a path and flags as the shell reads them, with the first
// Python that has `modules` ("torch, numpy"), expects it to end well, and
// returns its output. The Pythons are python3 and /usr/bin/python3; before
// them, if `modules` names timm, that of tools/setup.sh --ci. If none has the
// modules, skips the calling test, says why, and returns "".
std::string RunPythonTest(const std::string& modules, const std::string& script,
                          int deadline_seconds);

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_RUN_COMMAND_H_
