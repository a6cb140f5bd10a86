// For tests of this project's commands: runs a command as a user would.
#ifndef LOCKSTEP_BASE_RUN_COMMAND_H_
#define LOCKSTEP_BASE_RUN_COMMAND_H_

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

struct CommandOutcome {
  // The same as in SubprocessResult: -1 if the deadline passed first.
  int exit_status = -1;
  std::string output;  // Standard output and standard error, merged.
};

// Runs `command`, a path and flags in the shell's syntax.
CommandOutcome RunCommand(const std::string& command, int deadline_seconds);

// Expects exit status 2. Expects that the output is one line that begins with
// the program's name and contains `expected`. `flags` names the case.
void ExpectUsageError(const CommandOutcome& outcome, const std::string& program,
                      const std::string& flags, const std::string& expected);

// Expects that `outcome` is the result of `program` --help: a usage that begins
// with the program's name, states its exit statuses, has no line longer than
// `columns` and lists no internal flag. UsageText itself ensures that every
// other flag is listed.
void ExpectUsage(const CommandOutcome& outcome, const std::string& program,
                 size_t columns = 80);

// Expects a usage error of `program` for each of `cases`, which are flags and
// the text that the error must contain; and a usage for --help. `run` runs the
// program with flags.
void ExpectChecksFlags(
    const std::string& program,
    const std::function<CommandOutcome(const std::string& flags)>& run,
    const std::vector<std::pair<std::string, std::string>>& cases,
    size_t columns = 80);

// For Python's unit tests.
//
// Runs `script`, a path and flags in the shell's syntax, with the first Python
// that has `modules` ("torch, numpy"). Expects exit status 0 and returns the
// output. The candidates are python3 and /usr/bin/python3, in this order. If
// `modules` names timm, the Python of tools/setup.sh --ci comes before them. If
// no candidate has the modules, skips the calling test with the reason and
// returns "".
std::string RunPythonTest(const std::string& modules, const std::string& script,
                          int deadline_seconds);

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_RUN_COMMAND_H_
