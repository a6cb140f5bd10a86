// Text of /proc, and this machine's.
#include "benchmarks/available_memory.h"

#include <optional>

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

TEST(AvailableMemoryTest, IsThere) { EXPECT_GT(AvailableMemory(), 0); }

}  // namespace
}  // namespace lockstep
