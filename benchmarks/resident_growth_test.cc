// Memory that is taken is seen, and a process that fails is no number.
#include "benchmarks/resident_growth.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

// What the kernel, or a sanitizer, may add.
constexpr int64_t kSlack = 8 * kMiB;

// Takes memory from the system and gives it back to it: malloc, or the one of a
// sanitizer, might keep it.
absl::Status Take(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return absl::ResourceExhaustedError("no memory");
  std::memset(memory, 1, size);
  munmap(memory, size);
  return absl::OkStatus();
}

absl::Status Nothing() { return absl::OkStatus(); }

TEST(ResidentGrowthTest, SeesThePeak) {
  const absl::StatusOr<int64_t> nothing = ResidentGrowth(Nothing, Nothing);
  ASSERT_THAT(nothing, IsOk());
  EXPECT_GE(*nothing, 0);
  EXPECT_LT(*nothing, kSlack);
  const absl::StatusOr<int64_t> much =
      ResidentGrowth(Nothing, [] { return Take(64 * kMiB); });
  ASSERT_THAT(much, IsOk());
  EXPECT_GT(*much, 64 * kMiB - kSlack);
  EXPECT_LT(*much, 64 * kMiB + kSlack);
}

// The peak that this process had before does not hide the copy's.
TEST(ResidentGrowthTest, BeginsAtWhatIsResidentNow) {
  ASSERT_THAT(Take(128 * kMiB), IsOk());
  const absl::StatusOr<int64_t> growth =
      ResidentGrowth(Nothing, [] { return Take(32 * kMiB); });
  ASSERT_THAT(growth, IsOk());
  EXPECT_GT(*growth, 32 * kMiB - kSlack);
}

// Only what goes beyond the warm-up counts.
TEST(ResidentGrowthTest, LeavesOutTheWarmUp) {
  const auto take = [] { return Take(64 * kMiB); };
  const absl::StatusOr<int64_t> growth = ResidentGrowth(take, take);
  ASSERT_THAT(growth, IsOk());
  EXPECT_LT(*growth, kSlack);
}

TEST(ResidentGrowthTest, ReportsWhatTheWarmUpReports) {
  EXPECT_THAT(ResidentGrowth(
                  [] { return absl::DataLossError("it went wrong"); }, Nothing),
              StatusIs(absl::StatusCode::kInternal, "it went wrong"));
}

TEST(ResidentGrowthTest, ReportsWhatTheWorkReports) {
  EXPECT_THAT(ResidentGrowth(
                  Nothing, [] { return absl::DataLossError("it went wrong"); }),
              StatusIs(absl::StatusCode::kInternal, "it went wrong"));
}

TEST(ResidentGrowthTest, ReportsAProcessThatDoesNotFinish) {
  EXPECT_THAT(ResidentGrowth(Nothing, []() -> absl::Status { _exit(3); }),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("finish")));
}

}  // namespace
}  // namespace lockstep
