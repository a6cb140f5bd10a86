// What a user and a shell see.
#include "report/command_status.h"

#include <stdlib.h>

#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(FailTest, SaysWhatIsWrongAndTellsFlagsFromTheRest) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(Fail("sing", absl::InvalidArgumentError("--key: 'h'")), 2);
  EXPECT_EQ(Fail("sing", absl::NotFoundError("no voice")), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "sing: --key: 'h'\nsing: no voice\n");
}

TEST(CheckNotLaunchedTest, RefusesALaunchersEnvironment) {
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  EXPECT_THAT(CheckNotLaunched(), IsOk());
  ASSERT_EQ(setenv("RANK", "0", 1), 0);
  ASSERT_EQ(setenv("WORLD_SIZE", "2", 1), 0);
  EXPECT_THAT(CheckNotLaunched(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("starts its ranks itself")));
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
}

}  // namespace
}  // namespace lockstep
