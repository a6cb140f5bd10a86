// Tests that the threads of an exchange end with the sum of all messages.
#include "benchmarks/harness/exchange.h"

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/process.h"
#include "base/status_matchers.h"
#include "benchmarks/harness/rank_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::Each;
using ::testing::Gt;
using ::testing::SizeIs;

TEST(TimeExchangeTest, SumsTheMessagesOfEveryCall) {
  if (UsableCores() < 2) GTEST_SKIP() << "two threads need two cores";
  for (const int64_t bytes : {4, 56, 60, 256}) {
    const absl::StatusOr<TimedCalls> result =
        TimeExchange(/*threads=*/2, bytes, /*calls=*/30);
    ASSERT_THAT(result, IsOk());
    EXPECT_THAT(result->seconds, SizeIs(30));
    EXPECT_THAT(result->seconds, Each(Gt(0)));
    EXPECT_EQ(result->wrong, 0) << bytes;
  }
}

}  // namespace
}  // namespace lockstep::benchmarks
