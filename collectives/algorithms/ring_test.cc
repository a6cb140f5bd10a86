// The rings at every small size, also where RunOverTransport would choose
// another algorithm.
#include "collectives/algorithms/ring.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/memory_transport.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/data_type.h"
#include "collectives/reduce_op.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int64_t kCounts = 40;

absl::Status RunRing(Transport& transport, const Collective& call) {
  switch (call.operation) {
    case Operation::kAllReduce:
      return RingAllReduce(transport, call.input, call.output, call.op);
    case Operation::kReduce:
      return RingReduce(transport, call.input, call.output, call.op, call.peer);
    case Operation::kReduceScatter:
      return RingReduceScatter(transport, call.input, call.output, call.op);
    case Operation::kAllGather:
      return RingAllGather(transport, call.input, call.output, call.counts);
    case Operation::kBroadcast:
      return RingBroadcast(transport, call.output, call.peer);
    default:
      return absl::InternalError("no ring");
  }
}

// World size and how many pieces may be under way.
struct RingCase {
  int world_size;
  int max_pieces;
};

class RingTest : public testing::TestWithParam<RingCase> {
 protected:
  // All ranks make the calls, one after the other, without meeting in between.
  void Check(const std::vector<CheckedCall>& calls) {
    const auto statuses = RunOverMemory(
        GetParam().world_size, {.max_pieces = GetParam().max_pieces},
        [&](Transport& transport) {
          for (const CheckedCall& call : calls) {
            LOCKSTEP_RETURN_IF_ERROR(
                RunAndCheck(transport, call, AdditionOrder::kRing, RunRing));
          }
          return absl::OkStatus();
        });
    EXPECT_THAT(FirstCause(statuses), IsOk());
  }
};

TEST_P(RingTest, ReducesInTheOrderOfTheRing) {
  std::vector<CheckedCall> calls;
  for (int64_t count = 0; count < kCounts; ++count) {
    for (const bool in_place : {false, true}) {
      for (const DataType type :
           {DataType::kFloat32, DataType::kBFloat16, DataType::kUInt8}) {
        CheckedCall call = {Operation::kAllReduce, type, ReduceOp::kAverage,
                            count};
        call.in_place = in_place;
        calls.push_back(call);
        call.operation = Operation::kReduceScatter;
        calls.push_back(call);
        call.operation = Operation::kReduce;
        call.root = static_cast<int>(count % GetParam().world_size);
        calls.push_back(call);
      }
    }
  }
  Check(calls);
}

TEST_P(RingTest, GathersAndBroadcasts) {
  std::vector<CheckedCall> calls;
  for (int64_t count = 0; count < kCounts; ++count) {
    for (int root = 0; root < GetParam().world_size; ++root) {
      calls.push_back(
          {.operation = Operation::kBroadcast, .count = count, .root = root});
    }
    for (const bool in_place : {false, true}) {
      calls.push_back({.operation = Operation::kAllGather,
                       .type = DataType::kInt32,
                       .count = count,
                       .in_place = in_place});
    }
  }
  Check(calls);
}

// One rank with much, one with little, the others with nothing: the pieces of
// one rank alone go round.
TEST_P(RingTest, GathersVeryUnequalCounts) {
  std::vector<CheckedCall> calls;
  const int world_size = GetParam().world_size;
  for (int rank = 0; rank < world_size; ++rank) {
    for (const bool in_place : {false, true}) {
      CheckedCall call = {.operation = Operation::kAllGather,
                          .in_place = in_place,
                          .counts = std::vector<int64_t>(world_size)};
      call.counts[rank] = 150;
      call.counts[(rank + 1) % world_size] += 3;
      calls.push_back(call);
    }
  }
  Check(calls);
}

std::vector<RingCase> AllRingCases() {
  std::vector<RingCase> cases;
  for (const int world_size : {1, 2, 3, 4, 5, 8}) {
    for (const int max_pieces : {2, 3, 6}) {
      cases.push_back({world_size, max_pieces});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, RingTest,
                         testing::ValuesIn(AllRingCases()),
                         [](const auto& info) {
                           return absl::StrCat("P", info.param.world_size,
                                               "Pieces", info.param.max_pieces);
                         });

}  // namespace
}  // namespace lockstep
