// Turns of a library that is right, and of libraries that are not.
#include "benchmarks/all_reduce/turn.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "benchmarks/all_reduce/exact_pattern.h"
#include "benchmarks/all_reduce/plan.h"
#include "benchmarks/harness/rank_service.h"
#include "collectives/collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Rank 0 of two. What the other rank gives is known: the exact pattern of the
// same iteration, so the sum can be made here.
class TwoRanks : public AllReduceSubject {
 public:
  // Spoils the output of call `call`, given what the right output is.
  using Bug = std::function<void(int call, Buffer output)>;

  TwoRanks(const TurnRequest& request, Bug bug = nullptr)
      : request_(request), bug_(std::move(bug)) {}

  int rank() const override { return 0; }
  int world_size() const override { return 2; }

  absl::Status AllReduce(ConstBuffer input, Buffer output, ReduceOp) override {
    const int timed = calls_ - request_.warmup;
    const int64_t iteration =
        request_.first + (timed < 0 ? calls_ % request_.iterations : timed);
    std::vector<int32_t> other(static_cast<size_t>(input.count));
    ExactPattern pattern = *ExactPattern::Create(request_.type, request_.op,
                                                 /*rank=*/1, /*world_size=*/2);
    pattern.Fill(iteration, std::span<int32_t>(other));
    const auto* const mine = static_cast<const int32_t*>(input.data);
    auto* const sum = static_cast<int32_t*>(output.data);
    for (size_t i = 0; i < other.size(); ++i) sum[i] = mine[i] + other[i];
    if (bug_ && timed >= 0) bug_(timed, output);
    ++calls_;
    return status_;
  }

  absl::Status Barrier() override {
    ++barriers_;
    return absl::OkStatus();
  }

  absl::StatusOr<std::span<std::byte>> GroupMemory(int64_t bytes) override {
    ++allocations_;
    group_.resize(static_cast<size_t>(bytes));
    return std::span<std::byte>(group_);
  }

  void FailWith(absl::Status status) { status_ = std::move(status); }
  int calls() const { return calls_; }
  int allocations() const { return allocations_; }

 private:
  const TurnRequest request_;
  const Bug bug_;
  absl::Status status_;
  int calls_ = 0;
  int barriers_ = 0;
  int allocations_ = 0;
  std::vector<std::byte> group_;
};

TurnRequest Request() {
  TurnRequest request;
  request.type = DataType::kInt32;
  request.count = 1000;
  request.warmup = 3;
  request.iterations = 4;
  request.first = 20;
  return request;
}

int64_t WrongWith(const TurnRequest& request, TwoRanks::Bug bug) {
  TwoRanks subject(request, std::move(bug));
  const absl::StatusOr<TurnResult> result = TurnTaker(subject).Take(request);
  EXPECT_THAT(result, IsOk());
  return result.ok() ? result->wrong : -1;
}

int32_t* Elements(Buffer buffer) { return static_cast<int32_t*>(buffer.data); }

class TurnTakerTest : public testing::TestWithParam<bool> {
 protected:
  TurnRequest request() const {
    TurnRequest request = Request();
    request.in_place = GetParam();
    return request;
  }
};

TEST_P(TurnTakerTest, TimesEveryCallAndFindsNothingWrong) {
  for (const BufferKind buffers : {BufferKind::kOrdinary, BufferKind::kGroup}) {
    TurnRequest turn = request();
    turn.buffers = buffers;
    TwoRanks subject(turn);
    const absl::StatusOr<TurnResult> result = TurnTaker(subject).Take(turn);
    ASSERT_THAT(result, IsOk());
    EXPECT_THAT(result->seconds, SizeIs(4));
    EXPECT_THAT(result->seconds, Each(Ge(0)));
    EXPECT_EQ(result->wrong, 0);
    EXPECT_EQ(subject.calls(), 7);
    EXPECT_EQ(subject.allocations(), buffers == BufferKind::kGroup);
  }
}

TEST_P(TurnTakerTest, CountsASwappedChunk) {
  const int64_t wrong = WrongWith(request(), [](int call, Buffer output) {
    if (call != 2) return;
    std::swap_ranges(Elements(output), Elements(output) + 500,
                     Elements(output) + 500);
  });
  EXPECT_GT(wrong, 900);
  EXPECT_LE(wrong, 1000);
}

TEST_P(TurnTakerTest, CountsALostTail) {
  const int64_t wrong = WrongWith(request(), [](int call, Buffer output) {
    if (call == 3) std::memset(Elements(output) + 993, 0xff, 7 * 4);
  });
  EXPECT_GE(wrong, 6);  // One of the seven may be -1.
  EXPECT_LE(wrong, 7);
}

TEST_P(TurnTakerTest, CountsADoubleCount) {
  const TurnRequest turn = request();
  const int64_t wrong = WrongWith(turn, [&](int call, Buffer output) {
    std::vector<int32_t> other(1000);
    ExactPattern pattern =
        *ExactPattern::Create(DataType::kInt32, ReduceOp::kSum, 1, 2);
    pattern.Fill(turn.first + call, std::span<int32_t>(other));
    for (int i = 0; i < 1000; ++i) Elements(output)[i] += other[i];
  });
  EXPECT_GT(wrong, 3900);  // Zero counted twice is zero.
  EXPECT_LT(wrong, 4000);
}

TEST_P(TurnTakerTest, CountsAnAnswerOfTheCallBefore) {
  std::vector<int32_t> previous(1000);
  const int64_t wrong = WrongWith(request(), [&](int call, Buffer output) {
    const std::vector<int32_t> now(Elements(output), Elements(output) + 1000);
    if (call == 1)
      std::copy(previous.begin(), previous.end(), Elements(output));
    previous = now;
  });
  EXPECT_EQ(wrong, 1000);
}

TEST_P(TurnTakerTest, CountsOneBitInAnyCall) {
  for (const int bad : {0, 1, 2, 3}) {
    const int64_t wrong = WrongWith(request(), [&](int call, Buffer output) {
      if (call == bad) Elements(output)[999] ^= 1;
    });
    EXPECT_EQ(wrong, 1) << bad;
  }
}

INSTANTIATE_TEST_SUITE_P(Placements, TurnTakerTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "InPlace" : "OutOfPlace";
                         });

TEST(TurnTakerErrorTest, HandsOnTheSubjectsError) {
  TwoRanks subject(Request());
  subject.FailWith(absl::UnavailableError("rank 1 left"));
  EXPECT_THAT(TurnTaker(subject).Take(Request()),
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 left"));
}

TEST(TurnTakerErrorTest, ReportsMemoryThatIsNotThere) {
  TurnRequest request = Request();
  request.count = int64_t{1} << 56;
  TwoRanks subject(request);
  EXPECT_THAT(TurnTaker(subject).Take(request),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("no memory for")));
}

TEST(CombineRanksTest, TakesTheSlowestRankOfEachCallAndAllThatIsWrong) {
  const std::vector<TurnResult> results = {{{1, 5, 2}, 3}, {{4, 2, 2}, 4}};
  const absl::StatusOr<TurnResult> all = CombineRanks(results);
  ASSERT_THAT(all, IsOk());
  EXPECT_THAT(all->seconds, ElementsAre(4, 5, 2));
  EXPECT_EQ(all->wrong, 7);
}

TEST(CombineRanksTest, RefusesRanksOfDifferentTurns) {
  const std::vector<TurnResult> results = {{{1, 5}, 0}, {{4}, 0}};
  EXPECT_THAT(CombineRanks(results),
              StatusIs(absl::StatusCode::kDataLoss,
                       "one rank timed 2 calls, another 1"));
}

TEST(ParseResultTest, ReadsWhatSerializeWrote) {
  const absl::StatusOr<TurnResult> back =
      ParseResult(Serialize(TurnResult{{0.5, 0.25}, 7}));
  ASSERT_THAT(back, IsOk());
  EXPECT_THAT(back->seconds, ElementsAre(0.5, 0.25));
  EXPECT_EQ(back->wrong, 7);
}

TEST(ParseResultTest, RefusesWhatIsCutShort) {
  const std::string whole = Serialize(TurnResult{{0.5}, 7});
  for (size_t size = 0; size < whole.size(); ++size) {
    if (size == 8) continue;  // A result without samples.
    EXPECT_THAT(ParseResult(whole.substr(0, size)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("cut short")))
        << size;
  }
}

// A worker in a thread, its driver in the test.

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
}  // namespace lockstep::benchmarks
