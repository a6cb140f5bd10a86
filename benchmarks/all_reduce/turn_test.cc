// Turns of a library that is right, and of libraries that are not.
#include "benchmarks/all_reduce/turn.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
  const absl::StatusOr<TimedCalls> result = TurnTaker(subject).Take(request);
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
    const absl::StatusOr<TimedCalls> result = TurnTaker(subject).Take(turn);
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

}  // namespace
}  // namespace lockstep::benchmarks
