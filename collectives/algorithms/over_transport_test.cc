// Every operation on every algorithm gives what one rank computes in the order
// of order.h, bit for bit.
#include "collectives/algorithms/over_transport.h"

#include <cstdint>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithm.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/memory_transport.h"
#include "collectives/algorithms/order.h"
#include "collectives/algorithms/segment.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/data_type.h"
#include "collectives/reduce_op.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

constexpr Algorithm kAlgorithms[] = {Algorithm::kAuto, Algorithm::kRing,
                                     Algorithm::kTree};

class OverTransportTest : public testing::TestWithParam<int> {
 protected:
  int world_size() const { return GetParam(); }

  std::vector<int64_t> Counts() const {
    return {0, 1, world_size() - 1, world_size(), world_size() + 1, 37, 203};
  }
  std::set<int> Roots() const {
    return {0, world_size() / 2, world_size() - 1};
  }

  void Check(const std::vector<CheckedCall>& calls, Algorithm algorithm,
             const MemoryTransportOptions& options) {
    const auto run = [algorithm](Transport& transport, const Collective& call) {
      // The calls here are such as communicators let through.
      LOCKSTEP_RETURN_IF_ERROR(
          Validate(call, transport.rank(), transport.world_size()));
      return RunOverTransport(transport, call, algorithm);
    };
    const auto statuses =
        RunOverMemory(world_size(), options, [&](Transport& transport) {
          for (const CheckedCall& call : calls) {
            LOCKSTEP_RETURN_IF_ERROR(
                RunAndCheck(transport, call, AdditionOrder::kBySize, run));
          }
          return absl::OkStatus();
        });
    EXPECT_THAT(FirstCause(statuses), IsOk()) << Name(algorithm);
  }

  void CheckAll(const std::vector<CheckedCall>& calls) {
    for (const Algorithm algorithm : kAlgorithms) {
      for (const int max_pieces : {2, 3}) {
        Check(calls, algorithm, {.max_pieces = max_pieces});
      }
    }
  }
};

TEST_P(OverTransportTest, ReducesEveryTypeByEveryOp) {
  std::vector<CheckedCall> calls;
  for (const DataType type : kAllDataTypes) {
    for (const ReduceOp op : kAllReduceOps) {
      for (const Operation operation :
           {Operation::kAllReduce, Operation::kReduce,
            Operation::kReduceScatter}) {
        calls.push_back({operation, type, op, /*count=*/19,
                         /*root=*/world_size() - 1});
      }
    }
  }
  CheckAll(calls);
}

TEST_P(OverTransportTest, ReducesEveryCountInAndOutOfPlace) {
  std::vector<CheckedCall> calls;
  for (const DataType type : {DataType::kFloat32, DataType::kFloat16}) {
    for (const int64_t count : Counts()) {
      for (const bool in_place : {false, true}) {
        calls.push_back(
            {Operation::kAllReduce, type, ReduceOp::kSum, count, 0, in_place});
        calls.push_back({Operation::kReduceScatter, type, ReduceOp::kAverage,
                         count, 0, in_place});
        for (const int root : Roots()) {
          calls.push_back({Operation::kReduce, type, ReduceOp::kSum, count,
                           root, in_place});
        }
      }
    }
  }
  CheckAll(calls);
}

TEST_P(OverTransportTest, MovesEveryCountInAndOutOfPlace) {
  std::vector<CheckedCall> calls;
  for (const DataType type : {DataType::kInt64, DataType::kUInt8}) {
    for (const int64_t count : Counts()) {
      calls.push_back({Operation::kAllToAll, type, {}, count});
      for (const bool in_place : {false, true}) {
        calls.push_back({Operation::kAllGather, type, {}, count, 0, in_place});
        for (const int root : Roots()) {
          for (const Operation operation :
               {Operation::kScatter, Operation::kGather}) {
            calls.push_back({operation, type, {}, count, root, in_place});
          }
        }
      }
      for (const int root : Roots()) {
        calls.push_back({Operation::kBroadcast, type, {}, count, root});
        if (world_size() > 1) {
          calls.push_back({Operation::kSend, type, {}, count, root});
        }
      }
    }
  }
  for (const int max_pieces : {2, 3}) {
    Check(calls, Algorithm::kAuto, {.max_pieces = max_pieces});
  }
}

TEST_P(OverTransportTest, GathersUnequalCounts) {
  std::vector<CheckedCall> calls;
  for (const int64_t step : {0, 1, 9}) {
    for (const bool in_place : {false, true}) {
      CheckedCall call = {.operation = Operation::kAllGather,
                          .in_place = in_place};
      // Every other rank has none.
      for (int rank = 0; rank < world_size(); ++rank) {
        call.counts.push_back(rank % 2 == 0 ? 1 + step * rank : 0);
      }
      calls.push_back(call);
    }
  }
  Check(calls, Algorithm::kAuto, {});
}

// Just within the tree's order and just beyond it.
TEST_P(OverTransportTest, ChangesTheOrderOfAdditionsBySize) {
  std::vector<CheckedCall> calls;
  for (const DataType type : {DataType::kFloat64, DataType::kBFloat16}) {
    const int64_t limit = kTreeOrderBytes / SizeOf(type);
    for (const int64_t count : {limit, limit + 1, 2 * limit + 5}) {
      for (const bool in_place : {false, true}) {
        calls.push_back(
            {Operation::kAllReduce, type, ReduceOp::kSum, count, 0, in_place});
        calls.push_back({Operation::kReduce, type, ReduceOp::kAverage, count,
                         world_size() / 2, in_place});
      }
    }
  }
  for (const Algorithm algorithm : kAlgorithms) {
    Check(calls, algorithm, {.max_piece_bytes = 1024, .max_pieces = 3});
    // More than CompleteReduction takes in one step.
    Check(calls, algorithm, {.max_piece_bytes = 16 << 10});
  }
}

// A sum of two does not depend on their order, but which of two equal zeros is
// kept does.
TEST_P(OverTransportTest, KeepsTheEarlierOfEqualZeros) {
  std::vector<CheckedCall> calls;
  for (int root = 0; root < world_size(); ++root) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      for (const Operation operation :
           {Operation::kAllReduce, Operation::kReduce,
            Operation::kReduceScatter}) {
        CheckedCall call = {operation, DataType::kFloat32, op, /*count=*/40,
                            root};
        call.only_zeros = true;
        calls.push_back(call);
      }
    }
  }
  CheckAll(calls);
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, OverTransportTest,
                         testing::Values(1, 2, 3, 4, 5, 7, 8),
                         [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

// The same with plain arithmetic, and sums that do tell the orders apart.
TEST(AdditionOrderTest, IsThatOfPlainArithmetic) {
  constexpr int kRanks = 5;
  constexpr int64_t kSmall = 300;
  constexpr int64_t kLarge = kTreeOrderBytes;
  float x[kRanks][kLarge];
  for (int rank = 0; rank < kRanks; ++rank) {
    FillInput(rank, DataType::kFloat32, kLarge, x[rank]);
  }
  const auto tree = [&](int64_t i) {
    return ((x[0][i] + x[1][i]) + x[2][i]) + (x[3][i] + x[4][i]);
  };
  const auto ring = [&](int64_t i, int64_t count) {
    int k = 0;
    while (i >= SegmentOf(count, kRanks, k + 1).begin && k < kRanks - 1) ++k;
    float sum = x[k][i];
    for (int j = 1; j < kRanks; ++j) sum += x[(k + j) % kRanks][i];
    return sum;
  };
  for (const Algorithm algorithm : kAlgorithms) {
    for (const int64_t count : {kSmall, kLarge}) {
      std::vector<float> sums[kRanks];
      const auto statuses = RunOverMemory(
          kRanks, {.max_piece_bytes = 4096}, [&](Transport& transport) {
            std::vector<float>& sum = sums[transport.rank()];
            sum.assign(x[transport.rank()], x[transport.rank()] + count);
            return RunOverTransport(transport, Collective::AllReduce(sum),
                                    algorithm);
          });
      ASSERT_THAT(FirstCause(statuses), IsOk());
      int64_t different = 0;
      for (int64_t i = 0; i < count; ++i) {
        const float want = count == kSmall ? tree(i) : ring(i, count);
        const float other = count == kSmall ? ring(i, count) : tree(i);
        for (const std::vector<float>& sum : sums) ASSERT_EQ(sum[i], want);
        different += want != other;
      }
      EXPECT_GT(different, count / 10);
    }
  }
}

TEST(RunOverTransportTest, RejectsWhatMovesNoData) {
  EXPECT_THAT(RunOverMemory(1, {},
                            [](Transport& transport) {
                              return RunOverTransport(transport,
                                                      Collective::Barrier(),
                                                      Algorithm::kAuto);
                            }),
              ElementsAre(StatusIs(absl::StatusCode::kInternal,
                                   "Barrier moves no data")));
}

}  // namespace
}  // namespace lockstep
