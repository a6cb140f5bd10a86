// Messages between two ends of one process.
#include "benchmarks/turn_channel.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

struct Ends {
  TurnChannel near;
  TurnChannel far;
};

Ends Connect() {
  TurnListener listener = *TurnListener::Create();
  Ends ends;
  ends.near = *TurnChannel::Connect(listener.name());
  ends.far = *listener.Accept();
  return ends;
}

TEST(TurnChannelTest, CarriesWholeMessagesBothWays) {
  Ends ends = Connect();
  const std::string longest(kLargestTurnMessage, 'x');
  ASSERT_THAT(ends.near.Send(std::string("a\0b", 3)), IsOk());
  ASSERT_THAT(ends.near.Send(longest), IsOk());
  ASSERT_THAT(ends.far.Send("back"), IsOk());
  EXPECT_THAT(ends.far.Receive(Soon()), IsOkAndHolds(std::string("a\0b", 3)));
  EXPECT_THAT(ends.far.Receive(Soon()), IsOkAndHolds(longest));
  EXPECT_THAT(ends.near.Receive(Soon()), IsOkAndHolds("back"));
}

TEST(TurnChannelTest, RefusesLongerMessages) {
  Ends ends = Connect();
  EXPECT_THAT(
      ends.near.Send(std::string(kLargestTurnMessage + 1, 'x')),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("65537 bytes")));
}

TEST(TurnChannelTest, SeesThatTheOtherEndIsGone) {
  Ends ends = Connect();
  ends.far = TurnChannel();
  EXPECT_THAT(ends.near.Receive(absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("gone")));
  EXPECT_THAT(ends.near.Send("x"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("gone")));
}

TEST(TurnChannelTest, WaitsNoLongerThanTheDeadline) {
  Ends ends = Connect();
  EXPECT_THAT(
      ends.near.Receive(absl::Now() + absl::Milliseconds(1)),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("in time")));
}

TEST(TurnListenerTest, HasANameOfItsOwn) {
  EXPECT_NE(TurnListener::Create()->name(), TurnListener::Create()->name());
}

TEST(TurnListenerTest, CannotBeReachedOnceItIsGone) {
  const std::string name = TurnListener::Create()->name();
  EXPECT_THAT(TurnChannel::Connect(name),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("the driver of the benchmark")));
}

TEST(TurnListenerTest, LetsGoOfThoseWhomItDidNotAccept) {
  TurnListener listener = *TurnListener::Create();
  TurnChannel waiting = *TurnChannel::Connect(listener.name());
  listener.Close();
  EXPECT_THAT(waiting.Receive(Soon()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("gone")));
}

TEST(TurnListenerTest, IsNotReachedByANameTooLong) {
  EXPECT_THAT(TurnChannel::Connect(std::string(1000, 'a')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is not the name of a listener")));
}

}  // namespace
}  // namespace lockstep
