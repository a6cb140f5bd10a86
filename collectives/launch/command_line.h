// A program's own flags, and for the launcher the command after them.
#ifndef LOCKSTEP_COLLECTIVES_LAUNCH_COMMAND_LINE_H_
#define LOCKSTEP_COLLECTIVES_LAUNCH_COMMAND_LINE_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// Reads absl flags from the front of `arguments` (without the program's name)
// and returns the command that follows: everything after the first "--", or
// from the first argument that is not a flag; empty if there is none. Flags are
// written --name=value, --name value, and --name or --noname for booleans.
//
// absl::ParseCommandLine takes flags from anywhere and exits by itself; here
// the command's own flags stay its own, and the caller chooses the exit status.
// Errors: kInvalidArgument, one line that names the flag.
absl::StatusOr<std::vector<std::string>> ParseFlagsBeforeCommand(
    std::span<const std::string> arguments);

// The same for a program that runs no command: also kInvalidArgument if
// anything follows the flags.
absl::Status ParseFlags(std::span<const std::string> arguments);

}  // namespace lockstep

#endif  // LOCKSTEP_COLLECTIVES_LAUNCH_COMMAND_LINE_H_
