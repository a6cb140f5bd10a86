// Each mistake is named, and nothing else is.
#include "conformance/collectives/collective_causes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "collectives/collective.h"
#include "collectives/data_type.h"
#include "collectives/reduce_op.h"
#include "conformance/collectives/collective_case.h"
#include "conformance/collectives/collective_reference.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int kRanks = 3;
constexpr int kRank = 1;

CollectiveCase AllReduce(ReduceOp op, int64_t count = 67) {
  return {.operation = Operation::kAllReduce,
          .type = DataType::kFloat32,
          .op = op,
          .count = count};
}

Bytes Wanted(const CollectiveCase& call, int world_size = kRanks) {
  return OutputOf(call, Order::kBySize, world_size, kRank).value();
}

std::string CauseOf(const CollectiveCase& call, const Bytes& got,
                    int world_size = kRanks) {
  const Bytes want = Wanted(call, world_size);
  const Bytes before(want.size(), std::byte{0x5a});
  return CauseOfOutput(
      {call, Order::kBySize, world_size, kRank, got.data(), want, before});
}

TEST(CollectiveCausesTest, NamesWhatIsNotWritten) {
  const CollectiveCase call = AllReduce(ReduceOp::kSum);
  Bytes got = Wanted(call);
  std::fill(got.end() - 4, got.end(), std::byte{0x5a});
  EXPECT_EQ(CauseOf(call, got),
            ", as if the last element had not been written");
  std::fill(got.begin(), got.end(), std::byte{0x5a});
  EXPECT_EQ(CauseOf(call, got), ", as if nothing had been written");
}

TEST(CollectiveCausesTest, NamesWhatIsInAnotherPlace) {
  CollectiveCase call = AllReduce(ReduceOp::kMax);
  Bytes got = Wanted(call);
  std::swap_ranges(got.begin(), got.begin() + 4, got.end() - 4);
  EXPECT_EQ(CauseOf(call, got),
            ", as if the first and the last element had changed places");
  call.operation = Operation::kScatter;
  call.root = 2;
  CollectiveCase other = call;
  other.root = 0;
  EXPECT_EQ(CauseOf(call, Wanted(other)), ", as if rank 0 were the root");
}

TEST(CollectiveCausesTest, NamesWhatIsReduced) {
  EXPECT_EQ(
      CauseOf(AllReduce(ReduceOp::kAverage), Wanted(AllReduce(ReduceOp::kSum))),
      ", as if it were the sum, not the average");
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kProduct}) {
    const CollectiveCase call = AllReduce(op);
    EXPECT_EQ(CauseOf(call, OutputOf(call, Order::kBySize, kRanks, kRank,
                                     {.ranks = {}, .twice = 2})
                                .value()),
              ", as if rank 2's input were taken twice");
  }
}

TEST(CollectiveCausesTest, NamesTheOrder) {
  CollectiveCase call = AllReduce(ReduceOp::kSum, 9000);
  EXPECT_EQ(CauseOf(call, OutputOf(call, Order::kBySize, kRanks, kRank,
                                   {.ranks = {2, 1, 0}, .twice = -1})
                              .value()),
            ", as if the ranks were added in the order 2, 1, 0");
  EXPECT_EQ(CauseOf(call,
                    OutputOf(call, Order::kBySize, 5, kRank,
                             {.ranks = {1, 0, 4, 3, 2}, .twice = -1})
                        .value(),
                    5),
            ", as if the ranks were added in the order 1, 0, 4, 3, 2");
  CollectiveCase uniform = call;
  uniform.uniform = uniform.in_place = true;
  EXPECT_EQ(CauseOf(uniform, Wanted(call)),
            ", as if it were added in the order of its size");
}

TEST(CollectiveCausesTest, NamesNothingThatDoesNotGiveEveryBit) {
  for (const ReduceOp op : kAllReduceOps) {
    const CollectiveCase call = AllReduce(op);
    Bytes got = Wanted(call);
    got[4 * 33] ^= std::byte{1};
    EXPECT_EQ(CauseOf(call, got), "");
    std::swap_ranges(got.begin(), got.begin() + 4, got.end() - 4);
    EXPECT_EQ(CauseOf(call, got), "");
  }
}

TEST(CollectiveCausesTest, NamesTheRootOfAStrayOutput) {
  CollectiveCase call = AllReduce(ReduceOp::kSum);
  call.operation = Operation::kReduce;
  call.root = kRank;
  Bytes got = Wanted(call);
  call.root = 0;
  EXPECT_EQ(CauseOfStrayOutput(call, Order::kBySize, kRanks, kRank, got.data()),
            ", as if rank 1 were the root");
  got[0] ^= std::byte{1};
  EXPECT_EQ(CauseOfStrayOutput(call, Order::kBySize, kRanks, kRank, got.data()),
            "");
}

}  // namespace
}  // namespace lockstep
