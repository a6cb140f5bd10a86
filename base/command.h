// How a command begins: its flags, and --help.
#ifndef LOCKSTEP_BASE_COMMAND_H_
#define LOCKSTEP_BASE_COMMAND_H_

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

// How a benchmark was started, for its report.

// The command as its user would type it. `label`: the program's, such as
// "//benchmarks:scaling", which is what a user of `bazel run` types.
std::string CommandText(const std::string& label, std::span<char* const> argv);

// The commit that `bazel run` built, as CheckedOutCommit gives it; empty for a
// program that was started in another way.
std::string CommitText();

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_COMMAND_H_
