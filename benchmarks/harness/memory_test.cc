#include "benchmarks/harness/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/rank_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Memory in the text of /proc, and on this machine.

TEST(MemAvailableTest, IsWhatTheLineSaysIfThereIsOne) {
  EXPECT_EQ(MemAvailable("MemTotal:       100 kB\nMemAvailable:    12 kB\n"),
            12 << 10);
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
                       "--size: 9 of them need 3 MiB, but there is room for 3 "
                       "MiB"));
}

// Memory growth is seen, and a process that fails gives no number.

constexpr int64_t kMiB = 1 << 20;

// The bytes that the kernel or a sanitizer may add.
constexpr int64_t kSlack = 8 * kMiB;

// Takes memory from the system and returns it to the system. The malloc of the
// system or of a sanitizer might keep it.
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

// An earlier peak of this process does not hide that of the copy.
TEST(ResidentGrowthTest, BeginsAtWhatIsResidentNow) {
  ASSERT_THAT(Take(128 * kMiB), IsOk());
  const absl::StatusOr<int64_t> growth =
      ResidentGrowth(Nothing, [] { return Take(32 * kMiB); });
  ASSERT_THAT(growth, IsOk());
  EXPECT_GT(*growth, 32 * kMiB - kSlack);
}

// Only memory beyond that of the warm-up counts.
TEST(ResidentGrowthTest, LeavesOutTheWarmUp) {
  const auto take = [] { return Take(64 * kMiB); };
  const absl::StatusOr<int64_t> growth = ResidentGrowth(take, take);
  ASSERT_THAT(growth, IsOk());
  EXPECT_LT(*growth, kSlack);
}

TEST(ResidentGrowthTest, ReportsWhatTheWarmUpOrTheWorkReports) {
  const auto fails = [] { return absl::DataLossError("it went wrong"); };
  const auto wrong = StatusIs(absl::StatusCode::kInternal, "it went wrong");
  EXPECT_THAT(ResidentGrowth(fails, Nothing), wrong);
  EXPECT_THAT(ResidentGrowth(Nothing, fails), wrong);
}

TEST(ResidentGrowthTest, ReportsAProcessThatDoesNotFinish) {
  EXPECT_THAT(ResidentGrowth(Nothing, []() -> absl::Status { _exit(3); }),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("finish")));
}

// Copies happen and are timed. Their speed is not tested.

TEST(TimeCopiesTest, TimesEveryCopyAndMissesNoByte) {
  for (const CopyStores stores : {CopyStores::kMemcpy, CopyStores::kStreamed}) {
    for (const int threads : {1, 2, 3}) {
      for (const int64_t bytes : {1, 8, 1000, 9 << 20}) {
        const absl::StatusOr<TimedCalls> result =
            TimeCopies(threads, bytes, /*warmup=*/0, /*iterations=*/3, stores);
        ASSERT_THAT(result, IsOk());
        EXPECT_THAT(result->seconds, SizeIs(3));
        EXPECT_THAT(result->seconds, Each(Gt(0)));
        EXPECT_EQ(result->wrong, 0);
      }
    }
  }
}

TEST(TimeCopiesTest, CountsWhatWasNotCopiedAndReportsMemoryThatIsNotThere) {
  const absl::StatusOr<TimedCalls> result =
      TimeCopies(2, 1000, /*warmup=*/0, /*iterations=*/0);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->wrong, 500);
  EXPECT_THAT(TimeCopies(1, int64_t{1} << 62, 0, 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr("no memory for")));
}

TEST(UpdaterTest, UpdatesEveryValueOfEveryCallOnce) {
  for (const int threads : {1, 2, 3}) {
    Updater updater(threads);
    for (const int64_t bytes : {1000, 9 << 20, 12}) {
      const absl::StatusOr<TimedCalls> result =
          updater.Time(bytes, /*calls=*/3);
      ASSERT_THAT(result, IsOk());
      EXPECT_THAT(result->seconds, SizeIs(3));
      EXPECT_THAT(result->seconds, Each(Gt(0)));
      EXPECT_EQ(result->wrong, 0);
    }
  }
  EXPECT_THAT(Updater(1).Time(int64_t{1} << 62, 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr("no memory for")));
}

}  // namespace
}  // namespace lockstep::benchmarks
