// What a command says of a flag that is wrong.
#ifndef LOCKSTEP_TOOLS_TESTING_EXPECT_USAGE_ERROR_H_
#define LOCKSTEP_TOOLS_TESTING_EXPECT_USAGE_ERROR_H_

#include <string>

#include "tools/testing/run_command.h"

namespace lockstep {

// Expects exit status 2, and of the output that it is one line, which begins
// with the program's name and has `expected` in it. `flags` names the case.
void ExpectUsageError(const CommandOutcome& outcome, const std::string& program,
                      const std::string& flags, const std::string& expected);

}  // namespace lockstep

#endif  // LOCKSTEP_TOOLS_TESTING_EXPECT_USAGE_ERROR_H_
