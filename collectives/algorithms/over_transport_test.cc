// That every operation on every algorithm gives what one rank computes in the
// order of schedule.h, bit for bit; and before, that the transport of these
// tests is as bounded and as strict as they need it.
#include "collectives/algorithms/over_transport.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <set>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/memory_transport.h"
#include "collectives/algorithms/pairwise.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/group_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

void SendByte(Transport& transport, int peer, int value) {
  (*transport.Room(peer))[0] = static_cast<std::byte>(value);
  transport.Send(peer, 1);
}

TEST(MemoryTransportTest, DeliversPiecesInOrderWithBoundedRoom) {
  std::latch full(1);  // Until then nothing is released.
  const auto statuses =
      RunOverMemory(2, {.max_pieces = 3}, [&full](Transport& transport) {
        const int peer = 1 - transport.rank();
        if (transport.rank() == 0) {
          for (int value = 0; value < 3; ++value) {
            SendByte(transport, peer, value);
          }
          EXPECT_FALSE(transport.Room(peer).has_value());
          full.count_down();
          LOCKSTEP_RETURN_IF_ERROR(transport.Wait(peer, Transport::kNobody));
          SendByte(transport, peer, 3);
          return absl::OkStatus();
        }
        full.wait();
        for (int value = 0; value < 4; ++value) {
          LOCKSTEP_RETURN_IF_ERROR(transport.Wait(Transport::kNobody, peer));
          const auto piece = transport.Received(peer);
          EXPECT_EQ(piece->size(), 1);
          EXPECT_EQ((*piece)[0], static_cast<std::byte>(value));
          transport.Release(peer);
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, ElementsAre(IsOk(), IsOk()));
}

TEST(MemoryTransportTest, WaitForNothingEndsAtTheDeadline) {
  // Each waits for the other.
  const auto statuses = RunOverMemory(
      2, {.timeout = absl::Milliseconds(50)}, [](Transport& transport) {
        return transport.Wait(Transport::kNobody, 1 - transport.rank());
      });
  EXPECT_THAT(FirstCause(statuses),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("waited for rank")));
}

TEST(MemoryTransportTest, WaitForARankThatLeftEndsAtOnce) {
  const auto statuses =
      RunOverMemory(2, {}, [](Transport& transport) -> absl::Status {
        if (transport.rank() == 0) return absl::OkStatus();
        return transport.Wait(Transport::kNobody, 0);
      });
  EXPECT_THAT(statuses,
              ElementsAre(IsOk(), StatusIs(absl::StatusCode::kUnavailable,
                                           "rank 0 left the group")));
}

TEST(MemoryTransportTest, FailureOfARankEndsAllAndIsTheFirstCause) {
  const auto statuses =
      RunOverMemory(3, {}, [](Transport& transport) -> absl::Status {
        if (transport.rank() == 2) return absl::DataLossError("it broke");
        return transport.Wait(Transport::kNobody, 1 - transport.rank());
      });
  const auto is_unavailable =
      StatusIs(absl::StatusCode::kUnavailable, "rank 2 failed: it broke");
  EXPECT_THAT(statuses,
              ElementsAre(is_unavailable, is_unavailable,
                          StatusIs(absl::StatusCode::kDataLoss, "it broke")));
  EXPECT_THAT(FirstCause(statuses),
              StatusIs(absl::StatusCode::kDataLoss, "it broke"));
}

// Runs one call on rank 0 and one on rank 1.
std::vector<absl::Status> RunPair(const Collective& first,
                                  const Collective& second) {
  return RunOverMemory(
      2, {.timeout = absl::Seconds(5)}, [&](Transport& transport) {
        return SendOrReceive(transport, transport.rank() == 0 ? first : second);
      });
}

TEST(SendReceiveTest, BothReportTheSameDisagreement) {
  float a[4] = {};
  float b[4] = {};
  int32_t ints[4] = {};
  const Collective send = Collective::Send(a, 1, {"sender.cc", 7});
  const struct {
    Collective second;
    const char* call;
  } kCases[] = {
      {Collective::Receive(std::span(b, 3), 0, {"peer.cc", 9}),
       "Receive(float32[3], from rank 0) at peer.cc:9"},
      {Collective::Receive(ints, 0, {"peer.cc", 9}),
       "Receive(int32[4], from rank 0) at peer.cc:9"},
      {Collective::Send(b, 0, {"peer.cc", 9}),
       "Send(float32[4], to rank 0) at peer.cc:9"},
  };
  for (const auto& [second, call] : kCases) {
    EXPECT_THAT(
        RunPair(send, second),
        Each(StatusIs(
            absl::StatusCode::kInvalidArgument,
            absl::StrCat("ranks disagree: rank 0 called Send(float32[4], to "
                         "rank 1) at sender.cc:7, rank 1 called ",
                         call))));
  }
}

TEST(SendReceiveTest, TwoReceivesDisagree) {
  float a[2] = {};
  float b[2] = {};
  EXPECT_THAT(RunPair(Collective::Receive(a, 1), Collective::Receive(b, 0)),
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            AllOf(HasSubstr("rank 0 called Receive"),
                                  HasSubstr("rank 1 called Receive")))));
}

TEST(SendReceiveTest, AgreesOverPiecesSmallerThanACall) {
  float a[] = {1, 2};
  float b[] = {0, 0};
  EXPECT_THAT(RunPair(Collective::Send(a, 1), Collective::Receive(b, 0)),
              Each(IsOk()));
  EXPECT_THAT(b, ElementsAre(1, 2));
}

TEST(SendReceiveTest, NobodyThereEndsAtTheDeadline) {
  float a[2] = {};
  const auto statuses = RunOverMemory(
      2, {.timeout = absl::Milliseconds(50)},
      [&](Transport& transport) -> absl::Status {
        // Rank 1 waits for something else.
        if (transport.rank() == 1) {
          return transport.Wait(Transport::kNobody, 1);
        }
        return SendOrReceive(transport, Collective::Receive(a, 1));
      });
  EXPECT_THAT(FirstCause(statuses),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("waited for rank 1")));
}

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
