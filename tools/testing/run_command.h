// Runs a command of this project as its user would, for the commands' tests.
#ifndef LOCKSTEP_TOOLS_TESTING_RUN_COMMAND_H_
#define LOCKSTEP_TOOLS_TESTING_RUN_COMMAND_H_

#include <string>

namespace lockstep {

struct CommandOutcome {
  int exit_status = -1;  // 124 past the deadline; -1 if a signal ended it.
  std::string output;    // Standard output and error together.
};

// `command`, a path and flags, as the shell reads them.
CommandOutcome RunCommand(const std::string& command, int deadline_seconds);

}  // namespace lockstep

#endif  // LOCKSTEP_TOOLS_TESTING_RUN_COMMAND_H_
