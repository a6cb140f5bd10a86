// Tests of one turn, and of ExactPattern.
#include "benchmarks/all_reduce/turn.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "benchmarks/all_reduce/exact_pattern.h"
#include "benchmarks/all_reduce/settings.h"
#include "benchmarks/harness/rank_service.h"
#include "collectives/algorithms/collective_reference.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "report/document.h"

namespace lockstep::benchmarks {
namespace {

using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Turns of ranks that are threads.

// Damages the output of call `call`, which is -1 for a call that is not timed.
// before: the output of the previous call.
using Damage =
    std::function<void(int rank, int call, Buffer output, const Bytes& before)>;

class DamagedGroup : public ForwardingCommunicator {
 public:
  DamagedGroup(Communicator& inner, const TurnRequest& request, Damage damage)
      : ForwardingCommunicator(inner),
        calls_(-request.warmup),
        damage_(std::move(damage)) {}

  absl::Status Run(const Collective& call) override {
    const absl::Status status = inner().Run(call);
    if (call.operation == Operation::kBarrier) return status;
    const std::byte* const data = call.output.bytes();
    const Bytes right(data, data + call.output.size_bytes());
    damage_(rank(), std::max(calls_, -1), call.output, before_);
    ++calls_;
    before_ = right;
    return status;
  }
  absl::StatusOr<GroupBuffer> Allocate(int64_t bytes, CallSite site) override {
    allocated_ = true;
    return inner().Allocate(bytes, site);
  }

  int calls() const { return calls_; }
  bool allocated() const { return allocated_; }

 private:
  int calls_;  // The number of the next call; timed calls begin at 0.
  const Damage damage_;
  Bytes before_;
  bool allocated_ = false;
};

constexpr int kRanks = 3;

// Returns the number of wrong elements on all ranks.
int64_t CountWrongWith(const TurnRequest& request, const Damage& damage) {
  int64_t wrong = 0;
  const auto run = [&](Communicator& inner) -> absl::StatusOr<std::string> {
    DamagedGroup group(inner, request, damage);
    const absl::StatusOr<AllReduceTurn> turn = TurnTaker(group).Take(request);
    if (!turn.ok()) return turn.status();
    EXPECT_THAT(turn->calls.seconds, SizeIs(request.iterations));
    EXPECT_THAT(turn->calls.seconds, Each(Ge(0)));
    EXPECT_EQ(group.calls(), request.iterations);
    EXPECT_EQ(group.allocated(), request.buffers == BufferKind::kGroup);
    return Encode(*turn);
  };
  for (const absl::StatusOr<std::string>& bytes :
       RunRanksCollect(Backend::kThreads, kRanks, run)) {
    EXPECT_THAT(bytes, IsOk());
    if (bytes.ok()) wrong += Decode<AllReduceTurn>(*bytes)->calls.wrong;
  }
  return wrong;
}

// Returns a request whose parts begin within blocks of the pattern.
TurnRequest Request() {
  return {.type = DataType::kInt32,
          .count = 5000 * kRanks,
          .warmup = 3,
          .iterations = 4,
          .first = 20};
}

int32_t* Elements(Buffer buffer) { return static_cast<int32_t*>(buffer.data); }

TEST(TurnTakerTest, ChecksEveryElementOfEveryCallOfEveryCollective) {
  const Damage none = [](int, int, Buffer, const Bytes&) {};
  const Damage one_bit = [](int rank, int call, Buffer output, const Bytes&) {
    if (rank == call % kRanks) Elements(output)[output.count - 1] ^= 1;
  };
  const Damage swapped = [](int, int, Buffer output, const Bytes&) {
    int32_t* const data = Elements(output);
    std::rotate(data, data + output.count / 2, data + output.count);
  };
  // Replaces the output by that of the previous call.
  const Damage stale = [](int rank, int call, Buffer output,
                          const Bytes& before) {
    if (rank == 1 && call == 1) std::ranges::copy(before, output.bytes());
  };
  for (const Operation operation :
       {Operation::kAllReduce, Operation::kReduceScatter, Operation::kAllGather,
        Operation::kBroadcast, Operation::kAllToAll}) {
    for (const bool asked : {false, true}) {
      SCOPED_TRACE(absl::StrCat(Name(operation), asked ? " in place" : ""));
      TurnRequest request = Request();
      request.operation = operation;
      request.buffers = asked ? BufferKind::kGroup : BufferKind::kOrdinary;
      request.in_place =
          InPlace({.in_place = asked}, operation, TeamKind::kThreads);
      EXPECT_EQ(CountWrongWith(request, none), 0);
      EXPECT_EQ(CountWrongWith(request, one_bit), request.iterations);
      const bool part = operation == Operation::kReduceScatter;
      EXPECT_EQ(CountWrongWith(request, stale), part ? 5000 : request.count);
      EXPECT_GT(CountWrongWith(request, swapped),
                request.iterations * (part ? 5000 : request.count));
    }
  }
}

class FailingGroup : public FakeCommunicator {
 public:
  explicit FailingGroup(absl::Status status) : status_(std::move(status)) {}
  absl::Status Run(const Collective&) override { return status_; }

 private:
  const absl::Status status_;
};

TEST(TurnTakerTest, SaysWhatALibraryLacksAndHandsErrorsOn) {
  FailingGroup lacking(absl::UnimplementedError("no such thing"));
  const absl::StatusOr<AllReduceTurn> turn = TurnTaker(lacking).Take(Request());
  ASSERT_THAT(turn, IsOk());
  EXPECT_EQ(turn->missing, "no such thing");
  FailingGroup failing(absl::UnavailableError("rank 1 left"));
  EXPECT_THAT(TurnTaker(failing).Take(Request()),
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 left"));
  TurnRequest request = Request();
  request.count = int64_t{1} << 56;
  EXPECT_THAT(TurnTaker(failing).Take(request),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("no memory for")));
}

constexpr int64_t kCount = 5000;  // More than one block; the last is partial.

class ExactPatternTest
    : public testing::TestWithParam<std::tuple<DataType, ReduceOp, int>> {
 protected:
  DataType type() const { return std::get<0>(GetParam()); }
  ReduceOp op() const { return std::get<1>(GetParam()); }
  int world_size() const { return std::get<2>(GetParam()); }
  // Returns the offset of an element in bytes.
  size_t At(int64_t i) const { return static_cast<size_t>(i * SizeOf(type())); }

  ExactPattern Pattern(int rank) const {
    return *ExactPattern::Create(type(), op(), rank, world_size());
  }

  Bytes Input(int rank, int64_t iteration, int64_t count = kCount) const {
    Bytes bytes(At(count));
    Pattern(rank).Fill(iteration, {bytes.data(), count, type()});
    return bytes;
  }

  // Returns the inputs of all ranks.
  std::vector<Bytes> Inputs(int64_t iteration, int64_t count = kCount) const {
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < world_size(); ++rank) {
      inputs.push_back(Input(rank, iteration, count));
    }
    return inputs;
  }

  Bytes Reduced(const std::vector<Bytes>& inputs) const {
    return Reference(type(), op(), FoldOrder::kChain, inputs);
  }

  // Returns the correct result.
  Bytes Result(int64_t iteration, int64_t count = kCount) const {
    return Reduced(Inputs(iteration, count));
  }

  int64_t WrongOf(int64_t iteration, const Bytes& bytes) const {
    const auto count = static_cast<int64_t>(bytes.size()) / SizeOf(type());
    return Pattern(0).CountWrong(iteration, {bytes.data(), count, type()});
  }
};

TEST_P(ExactPatternTest, KnowsTheResult) {
  for (const int64_t iteration : {0, 1, 77}) {
    for (const int64_t count : {int64_t{1}, int64_t{4096}, kCount}) {
      EXPECT_EQ(WrongOf(iteration, Result(iteration, count)), 0)
          << iteration << " " << count;
    }
  }
}

// No intermediate result of the inputs is rounded, in any order of reduction.
TEST_P(ExactPatternTest, StaysExactInEveryType) {
  const double limit = type() == DataType::kBFloat16 ? 256 : 2048;
  std::vector<double> sums(kCount);
  for (int rank = 0; rank < world_size(); ++rank) {
    const Bytes input = Input(rank, 3);
    for (int64_t i = 0; i < kCount; ++i) {
      const double value = std::abs(ElementAt(type(), &input[At(i)]));
      ASSERT_EQ(value, std::trunc(value));
      double& sum = sums[static_cast<size_t>(i)];
      sum = op() == ReduceOp::kProduct && rank > 0 ? sum * value : sum + value;
    }
  }
  const bool is_half =
      type() == DataType::kBFloat16 || type() == DataType::kFloat16;
  if (!is_half || op() == ReduceOp::kMin || op() == ReduceOp::kMax) return;
  // The sum of all magnitudes bounds every partial result.
  EXPECT_LE(*std::ranges::max_element(sums), limit);
}

TEST_P(ExactPatternTest, HasTheSamePiecesWhereverTheyBegin) {
  const Bytes whole = Result(2, 3 * kCount);
  ExactPattern pattern = Pattern(0);
  for (const int64_t begin : {int64_t{0}, int64_t{1}, int64_t{4095}, kCount}) {
    Bytes piece(At(kCount));
    pattern.FillResult(2, {piece.data(), kCount, type()}, begin);
    EXPECT_EQ(std::memcmp(piece.data(), &whole[At(begin)], At(kCount)), 0);
    const ConstBuffer right(&whole[At(begin)], kCount, type());
    EXPECT_EQ(pattern.CountWrong(2, right, begin), 0);
    EXPECT_GT(pattern.CountWrong(2, right, begin + 1), kCount / 3);
  }
}

TEST_P(ExactPatternTest, CountsEveryElementOfAStaleResult) {
  for (const int64_t earlier : {4, 3}) {
    EXPECT_EQ(WrongOf(5, Result(earlier)), kCount);
  }
}

TEST_P(ExactPatternTest, CountsWhatIsLostSwappedOrShifted) {
  const Bytes right = Result(5), old = Result(4);
  Bytes lost = right;
  std::memcpy(&lost[At(kCount - 3)], &old[At(kCount - 3)], At(3));
  EXPECT_EQ(WrongOf(5, lost), 3);
  // Results take more than two values, so well over a third differ.
  Bytes swapped = right;
  std::ranges::rotate(swapped, swapped.begin() + At(kCount / 2));
  EXPECT_GT(WrongOf(5, swapped), kCount / 3);
  Bytes shifted = right;
  std::memmove(&shifted[At(1)], &shifted[0], At(kCount - 1));
  EXPECT_GT(WrongOf(5, shifted), kCount / 3);
}

TEST_P(ExactPatternTest, CountsARankThatIsCountedTwiceOrNotAtAll) {
  if (world_size() == 1 || op() != ReduceOp::kSum) return;
  const std::vector<Bytes> inputs = Inputs(5);
  for (const int rank : {0, 1, world_size() - 1}) {
    std::vector<Bytes> twice = inputs, without = inputs;
    twice.push_back(inputs[static_cast<size_t>(rank)]);
    without.erase(without.begin() + rank);
    EXPECT_GT(WrongOf(5, Reduced(twice)), kCount / 2) << rank;
    EXPECT_GT(WrongOf(5, Reduced(without)), kCount / 2) << rank;
  }
}

TEST_P(ExactPatternTest, DiffersByRankAndPosition) {
  if (op() == ReduceOp::kProduct) return;
  const Bytes first = Input(0, 5), next = Input(1 % world_size(), 5);
  int64_t same_rank = 0, same_position = 0;
  for (int64_t i = 1; i < kCount; ++i) {
    same_rank += std::memcmp(&first[At(i)], &next[At(i)], At(1)) == 0;
    same_position += std::memcmp(&first[At(i)], &first[At(i - 1)], At(1)) == 0;
  }
  if (world_size() > 1) {
    EXPECT_LT(same_rank, kCount / 2);
  }
  EXPECT_LT(same_position, kCount / 2);
}

INSTANTIATE_TEST_SUITE_P(All, ExactPatternTest,
                         testing::Combine(testing::ValuesIn(kAllDataTypes),
                                          testing::ValuesIn(kAllReduceOps),
                                          testing::Values(1, 2, 3, 8, 64)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)),
                                               Name(std::get<1>(info.param)),
                                               "P", std::get<2>(info.param));
                         });

TEST(ExactPatternCreateTest, RefusesRanksThatCannotBe) {
  for (const auto& [rank, world_size] :
       {std::pair(0, 0), std::pair(0, 65), std::pair(2, 2), std::pair(-1, 2)}) {
    EXPECT_THAT(ExactPattern::Create(DataType::kFloat32, ReduceOp::kSum, rank,
                                     world_size),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("rank ", rank))));
  }
}

TEST(ExactPatternCreateTest, TakesMemoryOfAnyAlignment) {
  std::vector<std::byte> bytes(4 * 100 + 1);
  const Buffer odd(bytes.data() + 1, 100, DataType::kFloat32);
  ExactPattern pattern =
      *ExactPattern::Create(DataType::kFloat32, ReduceOp::kSum, 0, 1);
  pattern.Fill(0, odd);
  EXPECT_EQ(pattern.CountWrong(0, odd), 0);
}

}  // namespace
}  // namespace lockstep::benchmarks
