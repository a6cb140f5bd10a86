// How a command begins, and what its report says of how it was started.
#ifndef LOCKSTEP_BASE_COMMAND_H_
#define LOCKSTEP_BASE_COMMAND_H_

#include <optional>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

// Sets the flags from the command line; argv[0] is the program. Returns
// nullopt if the command goes on, and the exit status if it ends here: 0 after
// printing the usage for --help, which this adds to the command's flags;
// kUsageError after naming the unknown or malformed flag on standard error.
std::optional<int> BeginCommand(absl::string_view command,
                                const std::string& usage,
                                std::span<char* const> argv);

// The command as its user would type it. `label`: the program's, such as
// "//benchmarks:scaling", which is what a user of `bazel run` types.
std::string CommandText(const std::string& label, std::span<char* const> argv);

}  // namespace lockstep

#endif  // LOCKSTEP_BASE_COMMAND_H_
