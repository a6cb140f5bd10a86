// A worker in a thread, its driver in the test.
#include "benchmarks/all_reduce_worker.h"

#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "benchmarks/all_reduce_turn.h"
#include "benchmarks/rank_service.h"
#include "benchmarks/turn_channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

// Serves turns in a thread; a turn of n elements takes n seconds, and none can
// be taken of 13.
class Worker {
 public:
  Worker()
      : listener_(*TurnListener::Create()), thread_([this] {
          status_ = ServeTurns(
              listener_.name(), {3, 5},
              [](const TurnRequest& request) -> absl::StatusOr<TurnResult> {
                if (request.count == 13) return absl::AbortedError("unlucky");
                return TurnResult{{static_cast<double>(request.count)}, 0};
              });
        }) {}

  // Waits for the worker to connect, and returns the driver's end.
  TurnChannel Channel() {
    absl::StatusOr<TurnChannel> channel = listener_.Accept();
    EXPECT_THAT(channel, IsOk());
    return *std::move(channel);
  }

  absl::Status Join() {
    thread_.join();
    return status_;
  }

 private:
  TurnListener listener_;
  absl::Status status_;
  std::thread thread_;
};

absl::StatusOr<TurnResult> Turn(TurnChannel& driver, int64_t count) {
  TurnRequest request;
  request.count = count;
  EXPECT_THAT(driver.Send(Serialize(request)), IsOk());
  const absl::StatusOr<std::string> answer = driver.Receive(Soon());
  const absl::StatusOr<std::string> result =
      answer.ok() ? DecodeAnswer(*answer) : answer.status();
  return result.ok() ? ParseResult(*result) : result.status();
}

TEST(ServeTurnsTest, SaysWhoItIsAndTakesTurnsUntilTheDriverLeaves) {
  Worker worker;
  TurnChannel driver = worker.Channel();
  const absl::StatusOr<RankHello> hello = ParseHello(*driver.Receive(Soon()));
  ASSERT_THAT(hello, IsOk());
  EXPECT_EQ(hello->rank, 3);
  EXPECT_EQ(hello->world_size, 5);
  for (const int64_t count : {1, 2, 12}) {
    const absl::StatusOr<TurnResult> result = Turn(driver, count);
    ASSERT_THAT(result, IsOk());
    EXPECT_THAT(result->seconds, ElementsAre(count));
  }
  driver = TurnChannel();
  EXPECT_THAT(worker.Join(), IsOk());
}

TEST(ServeTurnsTest, TellsTheDriverWhyATurnFailed) {
  Worker worker;
  TurnChannel driver = worker.Channel();
  ASSERT_THAT(driver.Receive(Soon()), IsOk());
  EXPECT_THAT(Turn(driver, 13),
              StatusIs(absl::StatusCode::kAborted, "unlucky"));
  EXPECT_THAT(worker.Join(), StatusIs(absl::StatusCode::kAborted, "unlucky"));
}

TEST(ServeTurnsTest, RefusesWhatIsNoRequest) {
  Worker worker;
  TurnChannel driver = worker.Channel();
  ASSERT_THAT(driver.Receive(Soon()), IsOk());
  ASSERT_THAT(driver.Send("go"), IsOk());
  EXPECT_THAT(worker.Join(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another size")));
}

TEST(ParseRequestTest, ReadsWhatSerializeWrote) {
  TurnRequest request;
  request.count = 7;
  request.first = 9;
  const absl::StatusOr<TurnRequest> back = ParseRequest(Serialize(request));
  ASSERT_THAT(back, IsOk());
  EXPECT_EQ(back->count, 7);
  EXPECT_EQ(back->first, 9);
  EXPECT_THAT(ParseHello(Serialize(request)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("size")));
}

}  // namespace
}  // namespace lockstep
