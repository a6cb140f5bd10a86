// How a command begins: its flags, and --help.
#ifndef LOCKSTEP_REPORT_BEGIN_COMMAND_H_
#define LOCKSTEP_REPORT_BEGIN_COMMAND_H_

#include <optional>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

// Sets the flags from the command line; argv[0] is the program. None where the
// command goes on. The exit status where it ends here: 0 once --help, which
// this adds to the command's flags, has printed the usage; kUsageError once
// what is no flag, or has a wrong value, was named on standard error.
std::optional<int> BeginCommand(absl::string_view command,
                                const std::string& usage,
                                std::span<char* const> argv);

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_BEGIN_COMMAND_H_
