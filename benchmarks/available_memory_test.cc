// Text of /proc, and this machine's.
#include "benchmarks/available_memory.h"

#include <optional>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(MemAvailableTest, FindsTheLine) {
  EXPECT_EQ(MemAvailable("MemTotal:       100 kB\nMemAvailable:    12 kB\n"),
            12 << 10);
}

TEST(MemAvailableTest, IsNothingWhereTheLineIsMissingOrGarbled) {
  for (const char* text : {"", "MemTotal: 100 kB\n", "MemAvailable: x kB\n",
                           "MemAvailable: 12\n"}) {
    EXPECT_EQ(MemAvailable(text), std::nullopt) << text;
  }
}

TEST(AvailableMemoryTest, IsThereAndMoreThanARunMayTake) {
  EXPECT_GT(MemoryForRun(), 0);
  EXPECT_GT(AvailableMemory(), MemoryForRun());
}

TEST(CheckMemoryTest, RefusesWhatHasNoRoom) {
  EXPECT_THAT(CheckMemory("--size: 9 of them", 3 << 20, 3 << 20), IsOk());
  EXPECT_THAT(CheckMemory("--size: 9 of them", (3 << 20) + 1, 3 << 20),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--size: 9 of them need 3 MiB, and there is room for 3 "
                       "MiB"));
}

}  // namespace
}  // namespace lockstep
