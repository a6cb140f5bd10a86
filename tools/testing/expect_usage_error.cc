// One line and the exit status.
#include "tools/testing/expect_usage_error.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/testing/run_command.h"

namespace lockstep {

void ExpectUsageError(const CommandOutcome& outcome, const std::string& program,
                      const std::string& flags, const std::string& expected) {
  EXPECT_EQ(outcome.exit_status, 2) << flags;
  EXPECT_THAT(outcome.output,
              testing::AllOf(testing::StartsWith(program + ": "),
                             testing::HasSubstr(expected)))
      << flags;
  EXPECT_EQ(outcome.output.find('\n'), outcome.output.size() - 1) << flags;
}

}  // namespace lockstep
