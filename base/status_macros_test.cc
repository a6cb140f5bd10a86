#include "base/status_macros.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::Pointee;

absl::StatusOr<int> Half(int n) {
  if (n % 2 != 0) return absl::InvalidArgumentError("odd");
  return n / 2;
}

absl::StatusOr<int> Quarter(int n) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int half, Half(n));
  LOCKSTEP_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

absl::Status CountIfOk(const absl::Status& status, int& count) {
  LOCKSTEP_RETURN_IF_ERROR(status);
  ++count;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, AssignsValue) {
  EXPECT_THAT(Quarter(12), IsOkAndHolds(3));
}

TEST(StatusMacrosTest, ReturnsFirstError) {
  EXPECT_THAT(Quarter(6),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("odd")));
  EXPECT_THAT(Quarter(6), Not(IsOk()));
}

TEST(StatusMacrosTest, MovesValueThatCannotBeCopied) {
  auto forward = [](absl::StatusOr<std::unique_ptr<int>> in)
      -> absl::StatusOr<std::unique_ptr<int>> {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<int> out, std::move(in));
    return out;
  };
  EXPECT_THAT(forward(std::make_unique<int>(5)), IsOkAndHolds(Pointee(5)));
}

TEST(StatusMacrosTest, GoesOnOnlyWhenOk) {
  int count = 0;
  EXPECT_THAT(CountIfOk(absl::OkStatus(), count), IsOk());
  EXPECT_THAT(CountIfOk(absl::CancelledError("stop"), count),
              StatusIs(absl::StatusCode::kCancelled, "stop"));
  EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace lockstep
