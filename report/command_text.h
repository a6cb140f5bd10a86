// How a benchmark was started, for its report.
#ifndef LOCKSTEP_REPORT_COMMAND_TEXT_H_
#define LOCKSTEP_REPORT_COMMAND_TEXT_H_

#include <span>
#include <string>

namespace lockstep {

// The command as its user would type it. `label`: the program's, such as
// "//benchmarks:scaling", which is what a user of `bazel run` types.
std::string CommandText(const std::string& label, std::span<char* const> argv);

// The commit that `bazel run` built, as CheckedOutCommit gives it; empty for a
// program that was started in another way.
std::string CommitText();

}  // namespace lockstep

#endif  // LOCKSTEP_REPORT_COMMAND_TEXT_H_
