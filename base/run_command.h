// Runs a command of this project as its user would, for the commands' tests.
#ifndef LOCKSTEP_BASE_RUN_COMMAND_H_
#define LOCKSTEP_BASE_RUN_COMMAND_H_

#include <string>

namespace lockstep {

struct CommandOutcome {
  int exit_status = -1;  // 124 past the deadline; -1 if a signal ended it.
  std::string output;    // Standard output and error together.
};

// `command`, a path and flags, as the shell reads them.
CommandOutcome RunCommand(const std::string& command, int deadline_seconds);

// What a command says of a flag that is wrong.

// Expects exit status 2, and of the output that it is one line, which begins
// with the program's name and has `expected` in it. `flags` names the case.
void ExpectUsageError(const CommandOutcome& outcome, const std::string& program,
                      const std::string& flags, const std::string& expected);

// Runs Python's unit tests out of ours.

// Runs `script`, a path and flags as the shell reads them, with the first of
// python3 and /usr/bin/python3 that has `modules` ("torch, numpy"), and expects
// it to end well. If neither has them, skips the calling test and says why.
void RunPythonTest(const std::string& modules, const std::string& script,
                   int deadline_seconds);

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_RUN_COMMAND_H_
