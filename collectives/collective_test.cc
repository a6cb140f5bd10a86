#include "collectives/collective.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "collectives/buffer.h"
#include "collectives/call.h"
#include "collectives/data_type.h"
#include "collectives/reduce_op.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr int kRank = 1;
constexpr int kRanks = 3;

// Memory for calls of rank 1 of 3.
std::vector<float> x(12);
std::vector<float> y(12);
std::vector<int32_t> z(12);

Buffer Part(std::vector<float>& data, int64_t begin, int64_t count) {
  return Buffer(data).Part(begin, count);
}

TEST(ValidateTest, AcceptsWhatTheInterfacePromises) {
  const std::vector<int64_t> counts = {2, 4, 1};
  const std::vector<Collective> calls = {
      Collective::AllReduce(x, y),
      Collective::AllReduce(Buffer(x)),
      Collective::UniformAllReduce(Buffer(x)),
      Collective::AllReduce(Buffer(nullptr, 0, DataType::kInt64)),
      Collective::Reduce(x, {}, ReduceOp::kMax, 0),  // Not the root.
      Collective::ReduceScatter(x, Part(y, 0, 4)),
      Collective::ReduceScatter(x, Part(x, 4, 4)),  // In place.
      Collective::AllGather(Part(x, 0, 4), y),
      Collective::AllGather(Part(y, 4, 4), y),  // In place.
      Collective::AllGather(Part(x, 0, 4), Part(y, 0, 7), counts),
      Collective::AllGather(Part(y, 2, 4), Part(y, 0, 7), counts),
      Collective::Broadcast(x, 2),
      Collective::Scatter({}, Part(y, 0, 4), 0),
      Collective::Scatter(x, Part(x, 4, 4), 1),
      Collective::Gather(Part(x, 0, 4), {}, 0),
      Collective::Gather(Part(y, 4, 4), y, 1),
      Collective::AllToAll(x, y),
      Collective::Send(x, 0),
      Collective::Receive(x, 2),
      Collective::Barrier()};
  for (const Collective& call : calls) {
    EXPECT_THAT(Validate(call, kRank, kRanks), IsOk())
        << ToString(CallOf(call, kRanks));
  }
}

TEST(ValidateTest, SaysWhatIsWrong) {
  const std::vector<int64_t> two = {1, 2};
  const std::vector<int64_t> negative = {5, -1, 5};
  const std::vector<int64_t> another = {4, 3, 5};
  const std::vector<int64_t> sum = {1, 4, 1};
  const int64_t huge = INT64_MAX / 4;
  struct Case {
    Collective call;
    std::string why;
  };
  const std::vector<Case> cases = {
      {Collective::AllReduce(x, Part(y, 0, 11)),
       "its input has 12 elements and its output 11"},
      {Collective::AllReduce(x, z),
       "its input is float32 and its output int32"},
      {Collective::AllReduce(Part(x, 0, 8), Part(x, 1, 8)),
       "its input and output overlap elsewhere than in place"},
      {Collective::AllReduce(Buffer(nullptr, -1, DataType::kUInt8)),
       "a count is -1"},
      {Collective::Broadcast(Buffer(nullptr, huge, DataType::kFloat32), 0),
       "a count is 2305843009213693951"},
      {Collective::AllGather(Buffer(nullptr, huge, DataType::kFloat32), y),
       "a count is 2305843009213693951"},
      {Collective::Reduce(x, Part(y, 0, 11), ReduceOp::kSum, 1),
       "its input has 12 elements and its output 11"},
      {Collective::Reduce(x, y, ReduceOp::kSum, 3),
       "the root is outside [0, 3)"},
      {Collective::ReduceScatter(x, Part(y, 0, 5)),
       "its input has 12 elements in place of 3 * 5"},
      {Collective::ReduceScatter(x, Part(x, 0, 4)),
       "its input and output overlap elsewhere than in place"},
      {Collective::AllGather(Part(x, 0, 5), y),
       "its output has 12 elements in place of 3 * 5"},
      {Collective::AllGather(Part(x, 0, 2), y, two),
       "it has 2 counts for 3 ranks"},
      {Collective::AllGather(Part(x, 0, 2), y, negative), "a count is -1"},
      {Collective::AllGather(Part(x, 0, 2), y, another),
       "its input has 2 elements, and its own count is 3"},
      {Collective::AllGather(Part(x, 0, 4), y, sum),
       "its output has 12 elements, and the counts are 6"},
      {Collective::Broadcast(x, -1), "the root is outside [0, 3)"},
      {Collective::Scatter(x, Part(y, 0, 5), 1),
       "its input has 12 elements in place of 3 * 5"},
      {Collective::Gather(Part(x, 0, 5), y, 1),
       "its output has 12 elements in place of 3 * 5"},
      {Collective::AllToAll(Part(x, 0, 11), Part(y, 0, 11)),
       "its input has 11 elements in place of 3 * 3"},
      {Collective::AllToAll(x, x), "its input and output overlap"},
      {Collective::Send(x, kRank), "that is itself"},
      {Collective::Receive(x, 3), "the other rank is outside [0, 3)"}};
  for (const Case& c : cases) {
    EXPECT_THAT(Validate(c.call, kRank, kRanks),
                StatusIs(absl::StatusCode::kInvalidArgument, c.why))
        << ToString(CallOf(c.call, kRanks));
  }
}

TEST(ValidateTest, GivesTheCauseOfARefusal) {
  const absl::Status cause = absl::ResourceExhaustedError("no memory is left");
  for (const Operation operation :
       {Operation::kAllReduce, Operation::kAllGather, Operation::kBarrier}) {
    const Collective call = Collective::Refused(operation, cause);
    EXPECT_EQ(call.operation, operation);
    EXPECT_EQ(Validate(call, kRank, kRanks), cause);
  }
}

TEST(CallTest, CountsThatDifferAreToldApart) {
  const std::vector<int64_t> a = {3, 4, 5};
  const std::vector<int64_t> b = {4, 4, 4};
  const Call first = CallOf(Collective::AllGather(Part(x, 0, 4), y, a), kRanks);
  const Call second =
      CallOf(Collective::AllGather(Part(x, 0, 4), y, b), kRanks);
  EXPECT_FALSE(Agree(first, second));
  EXPECT_TRUE(Agree(first, first));
  EXPECT_THAT(ToString(first), HasSubstr("AllGather(float32[12], counts #"));
  EXPECT_NE(ToString(first).substr(0, 40), ToString(second).substr(0, 40));
}

TEST(CallTest, AnotherOrderOfAdditionsIsAnotherCall) {
  const Call by_size = CallOf(Collective::AllReduce(Buffer(x)), kRanks);
  const Call uniform = CallOf(Collective::UniformAllReduce(Buffer(x)), kRanks);
  EXPECT_FALSE(Agree(by_size, uniform));
  EXPECT_THAT(ToString(uniform), HasSubstr(", uniform"));
}

TEST(CallTest, NamesThePlaceInTheSource) {
  const int line = __LINE__ + 1;
  const Collective call = Collective::Broadcast(x, 2);
  EXPECT_EQ(
      ToString(CallOf(call, kRanks)),
      "Broadcast(float32[12], root 2) at collectives/collective_test.cc:" +
          std::to_string(line));
}

}  // namespace
}  // namespace lockstep
