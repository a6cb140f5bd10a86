// That copies happen and are timed; not how fast they are.
#include "benchmarks/copy_bandwidth.h"

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "benchmarks/all_reduce_turn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::Gt;
using ::testing::SizeIs;

TEST(TimeCopiesTest, TimesEveryCopyAndMissesNoByte) {
  for (const int threads : {1, 2, 3}) {
    for (const int64_t bytes : {1, 8, 1000, 1 << 20}) {
      const absl::StatusOr<TurnResult> result =
          TimeCopies(threads, bytes, /*warmup=*/0, /*iterations=*/3);
      ASSERT_THAT(result, IsOk());
      EXPECT_THAT(result->seconds, SizeIs(3));
      EXPECT_THAT(result->seconds, Each(Gt(0)));
      EXPECT_EQ(result->wrong, 0);
    }
  }
}

TEST(TimeCopiesTest, CountsBytesThatWereNotCopied) {
  const absl::StatusOr<TurnResult> result =
      TimeCopies(2, 1000, /*warmup=*/0, /*iterations=*/0);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->wrong, 500);
}

TEST(TimeCopiesTest, ReportsMemoryThatIsNotThere) {
  EXPECT_THAT(TimeCopies(1, int64_t{1} << 62, 0, 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr("no memory for")));
}

}  // namespace
}  // namespace lockstep
