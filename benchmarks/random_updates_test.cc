// That every update happens and is timed; not how fast.
#include "benchmarks/random_updates.h"

#include <cstdint>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::Gt;

TEST(TimeRandomUpdatesTest, LosesNoneAtAnySize) {
  for (const int64_t size : {1, 2, 511, 512, 513, 100'003, 9'000'000}) {
    EXPECT_THAT(TimeRandomUpdates(size), IsOkAndHolds(Gt(0.0))) << size;
  }
}

TEST(TimeRandomUpdatesTest, ReportsMemoryThatIsNotThere) {
  EXPECT_THAT(TimeRandomUpdates(int64_t{1} << 60),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr("no memory for")));
}

}  // namespace
}  // namespace lockstep
