// Tests that every operation on every algorithm gives the result that one rank
// computes in the order of schedule.h, bit for bit. Rings are tested also at
// sizes for which RunOverTransport chooses another algorithm. Further tests:
// messages between two ranks; that the transport of these tests is as bounded
// as they need it; that their checks reject a wrong algorithm and a faulty
// transport.
#include "collectives/algorithms/over_transport.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <latch>
#include <map>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/data_types.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/memory_transport.h"
#include "collectives/algorithms/ring.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

void SendByte(Transport& transport, int peer, int value) {
  (*transport.PieceBuffer(peer))[0] = static_cast<std::byte>(value);
  transport.Send(peer, 1);
}

TEST(MemoryTransportTest, DeliversPiecesInOrderWithBoundedRoom) {
  std::latch full(1);  // Nothing is released before this.
  const auto statuses =
      RunOverMemory(2, {.max_pieces = 3}, [&full](Transport& transport) {
        const int peer = 1 - transport.rank();
        if (transport.rank() == 0) {
          for (int value = 0; value < 3; ++value) {
            SendByte(transport, peer, value);
          }
          EXPECT_FALSE(transport.PieceBuffer(peer).has_value());
          full.count_down();
          LOCKSTEP_RETURN_IF_ERROR(transport.Wait(peer, Transport::kNoRank));
          SendByte(transport, peer, 3);
          return absl::OkStatus();
        }
        full.wait();
        for (int value = 0; value < 4; ++value) {
          LOCKSTEP_RETURN_IF_ERROR(transport.Wait(Transport::kNoRank, peer));
          const auto piece = transport.Received(peer);
          EXPECT_EQ(piece->size(), 1);
          EXPECT_EQ((*piece)[0], static_cast<std::byte>(value));
          transport.Release(peer);
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, ElementsAre(IsOk(), IsOk()));
}

// Runs the call on 3 ranks. Rank 2 calls `harm_after` after its call.
absl::Status RunHarmed(const CheckedCall& call, AdditionOrder order,
                       absl::FunctionRef<void(const Collective&)> harm_after) {
  return FirstCause(RunOverMemory(3, {}, [&](Transport& transport) {
    return RunAndCheck(transport, {call}, order,
                       [&](Transport& t, const Collective& collective) {
                         absl::Status status =
                             RunOverTransport(t, collective, Algorithm::kAuto);
                         if (t.rank() == 2) harm_after(collective);
                         return status;
                       });
  }));
}

constexpr auto kNoHarm = [](const Collective&) {};

TEST(RunAndCheckTest, RejectsWhatIsWrittenWrongly) {
  const CheckedCall call = {.operation = Operation::kAllToAll, .count = 5};
  EXPECT_THAT(RunHarmed(call, AdditionOrder::kBySize, kNoHarm), IsOk());
  const struct {
    std::byte* (*byte)(const Collective&);
    const char* said;
  } kCases[] = {
      {[](const Collective& c) { return c.output.bytes() + 14 * 8 + 7; },
       "the output is wrong from element 14 of 15"},
      {[](const Collective& c) {
         return c.output.bytes() + c.output.size_bytes();
       },
       "beside"},
      {[](const Collective& c) {
         return const_cast<std::byte*>(c.input.bytes());
       },
       "the input"}};
  for (const auto& test : kCases) {
    EXPECT_THAT(
        RunHarmed(call, AdditionOrder::kBySize,
                  [&](const Collective& c) { *test.byte(c) ^= std::byte{1}; }),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr(test.said)));
  }
}

// The cases include zeros: the order decides which of two zeros is kept.
TEST(RunAndCheckTest, RejectsTheOtherOrder) {
  for (const CheckedCall& call : {
           CheckedCall{Operation::kAllReduce, DataType::kFloat32,
                       ReduceOp::kSum, 100},
           CheckedCall{Operation::kReduce, DataType::kFloat32, ReduceOp::kSum,
                       100},
           CheckedCall{.operation = Operation::kAllReduce,
           .type = DataType::kFloat32,
           .op = ReduceOp::kMax,
           .count = 100,
           .input = CallInput::kZeros},
       }) {
    EXPECT_THAT(RunHarmed(call, AdditionOrder::kTree, kNoHarm), IsOk());
    EXPECT_THAT(RunHarmed(call, AdditionOrder::kRing, kNoHarm),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong")));
  }
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

  // Makes the calls on all ranks, one after the other, without a barrier in
  // between.
  void Check(
      const std::vector<CheckedCall>& calls, AdditionOrder order,
      const MemoryTransportOptions& options,
      absl::FunctionRef<absl::Status(Transport&, const Collective&)> run) {
    const auto statuses =
        RunOverMemory(world_size(), options, [&](Transport& transport) {
          return RunAndCheck(transport, calls, order, run);
        });
    EXPECT_THAT(FirstCause(statuses), IsOk());
  }

  void Check(const std::vector<CheckedCall>& calls, Algorithm algorithm,
             const MemoryTransportOptions& options) {
    SCOPED_TRACE(Name(algorithm));
    Check(calls, AdditionOrder::kBySize, options,
          [algorithm](Transport& transport, const Collective& call) {
            // The calls are valid, like those that communicators pass on.
            LOCKSTEP_RETURN_IF_ERROR(
                Validate(call, transport.rank(), transport.world_size()));
            return RunOverTransport(transport, call, algorithm);
          });
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
        calls.push_back({Operation::kSend, type, {}, count, root});
      }
    }
  }
  for (const int max_pieces : {2, 3}) {
    Check(calls, Algorithm::kAuto, {.max_pieces = max_pieces});
  }
}

TEST_P(OverTransportTest, GathersUnequalCounts) {
  std::vector<CheckedCall> calls;
  for (const bool in_place : {false, true}) {
    CheckedCall call = {.operation = Operation::kAllGather,
                        .in_place = in_place};
    // Every second rank has no elements.
    for (const int64_t step : {0, 1, 9}) {
      call.counts.clear();
      for (int rank = 0; rank < world_size(); ++rank) {
        call.counts.push_back(rank % 2 == 0 ? 1 + step * rank : 0);
      }
      calls.push_back(call);
    }
    // One rank has many elements, one has few, the others have none. Only the
    // pieces of one rank then go round.
    for (int rank = 0; rank < world_size(); ++rank) {
      call.counts.assign(static_cast<size_t>(world_size()), 0);
      call.counts[rank] = 150;
      call.counts[(rank + 1) % world_size()] += 3;
      calls.push_back(call);
    }
  }
  for (const int max_pieces : {2, 3, 6}) {
    Check(calls, Algorithm::kAuto, {.max_pieces = max_pieces});
  }
}

// Tests sizes just within the tree's order and just beyond it.
TEST_P(OverTransportTest, ChangesTheOrderOfAdditionsBySize) {
  std::vector<CheckedCall> calls;
  for (const DataType type : {DataType::kFloat64, DataType::kBFloat16}) {
    const int64_t limit = kTreeOrderBytes / SizeOf(type);
    for (const int64_t count : {limit, limit + 1, 2 * limit + 5}) {
      // Calls with the same result follow each other, so that it is computed
      // once.
      for (const bool in_place : {false, true}) {
        calls.push_back(
            {Operation::kAllReduce, type, ReduceOp::kSum, count, 0, in_place});
      }
      for (const bool in_place : {false, true}) {
        calls.push_back({Operation::kReduce, type, ReduceOp::kAverage, count,
                         world_size() / 2, in_place});
      }
    }
  }
  for (const Algorithm algorithm : kAlgorithms) {
    Check(calls, algorithm, {.max_piece_bytes = 1024, .max_pieces = 3});
    // The piece is larger than one step of CompleteReduction.
    Check(calls, algorithm, {.max_piece_bytes = 16 << 10});
  }
}

// A sum of two does not depend on their order. The choice between two equal
// zeros does.
TEST_P(OverTransportTest, KeepsTheEarlierOfEqualZeros) {
  std::vector<CheckedCall> calls;
  for (int root = 0; root < world_size(); ++root) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      for (const Operation operation :
           {Operation::kAllReduce, Operation::kReduce,
            Operation::kReduceScatter}) {
        CheckedCall call = {operation, DataType::kFloat32, op, /*count=*/40,
                            root};
        call.input = CallInput::kZeros;
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

class RingTest : public OverTransportTest {};

TEST_P(RingTest, ReducesEveryCountInItsOrder) {
  std::vector<CheckedCall> calls;
  for (int64_t count = 0; count < 40; ++count) {
    for (const bool in_place : {false, true}) {
      for (const DataType type :
           {DataType::kFloat32, DataType::kBFloat16, DataType::kUInt8}) {
        for (const Operation operation :
             {Operation::kAllReduce, Operation::kReduceScatter,
              Operation::kReduce}) {
          calls.push_back({operation, type, ReduceOp::kAverage, count,
                           static_cast<int>(count % world_size()), in_place});
        }
      }
    }
  }
  for (const int max_pieces : {2, 3, 6}) {
    Check(calls, AdditionOrder::kRing, {.max_pieces = max_pieces}, RingReduce);
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, RingTest,
                         testing::Values(2, 3, 4, 5, 7, 8),
                         [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

class TreeTest : public OverTransportTest {};

// Reduces to each root, at about 1, 2, 4 and 8 times the size that is not
// halved. The choice between two equal zeros shows the order.
TEST_P(TreeTest, HalvesWhatIsLarge) {
  std::vector<CheckedCall> calls;
  for (const auto& [type, op] :
       {std::pair(DataType::kFloat32, ReduceOp::kSum),
        std::pair(DataType::kFloat16, ReduceOp::kSum),
        std::pair(DataType::kUInt8, ReduceOp::kAverage)}) {
    std::vector<int64_t> counts = {0, 1, 2, 7};
    for (const int64_t whole : {1, 2, 4, 8}) {
      const int64_t count =
          whole * kTreeWholeBytes / SizeOf(AccumulatorOf(type, op));
      counts.insert(counts.end(), {count - 1, count, count + 1});
    }
    for (const int64_t count : counts) {
      for (const bool in_place : {false, true}) {
        calls.push_back(
            {Operation::kAllReduce, type, op, count, /*root=*/0, in_place});
      }
      for (int root = 0; root < world_size() && type == DataType::kUInt8;
           ++root) {
        calls.push_back({Operation::kReduce, type, op, count, root,
                         /*in_place=*/count % 2 == 0});
      }
    }
  }
  CheckedCall zeros = {Operation::kAllReduce, DataType::kFloat32,
                       ReduceOp::kMax, 8 * kTreeWholeBytes / 4 + 1};
  zeros.input = CallInput::kZeros;
  calls.push_back(zeros);
  for (const int max_pieces : {2, 4}) {
    Check(calls, Algorithm::kTree,
          {.max_piece_bytes = 192, .max_pieces = max_pieces});
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, TreeTest,
                         testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 11, 16),
                         [](const auto& info) {
                           return absl::StrCat("P", info.param);
                         });

// Computes the order with plain arithmetic, with sums that differ by order.
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

// Runs one call on rank 0 and one on rank 1.
std::vector<absl::Status> RunPair(const Collective& first,
                                  const Collective& second) {
  return RunOverMemory(
      2, {.timeout = absl::Seconds(5)}, [&](Transport& transport) {
        return RunOverTransport(transport,
                                transport.rank() == 0 ? first : second,
                                Algorithm::kAuto);
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

TEST(SendReceiveTest, NobodyThereEndsAtTheDeadline) {
  float a[2] = {};
  const auto statuses = RunOverMemory(
      2, {.timeout = absl::Milliseconds(50)},
      [&](Transport& transport) -> absl::Status {
        // Rank 1 waits for a piece that never comes.
        if (transport.rank() == 1) {
          return transport.Wait(Transport::kNoRank, 1);
        }
        return RunOverTransport(transport, Collective::Receive(a, 1),
                                Algorithm::kAuto);
      });
  EXPECT_THAT(FirstCause(statuses),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("waited for rank 1")));
}

// The controls: a faulty transport, in every operation that carries data.

enum class Fault {
  kNone,
  kSwapTwoPieces,  // The second and third pieces swap places.
  kLoseTail,       // The third piece is 8 bytes short.
  kKeepOldTail,    // The last 8 bytes of the third piece are not written.
  kRepeatPiece,    // The third piece is a copy of the second.
  kBlankPiece,     // The third piece is all zero.
};

// Replaces the pieces that rank 1 sends to each rank.
class Harm {
 public:
  explicit Harm(Fault fault) : fault_(fault) {}

  std::vector<Piece> operator()(int from, int to, Piece piece) {
    if (from != 1) return {piece};
    auto& [pieces, last] = ways_[to];
    const Piece before = std::exchange(last, piece);
    ++pieces;
    if (pieces == 2 && fault_ == Fault::kSwapTwoPieces) return {};
    if (pieces != 3) return {piece};
    switch (fault_) {
      case Fault::kSwapTwoPieces:
        return {piece, before};
      case Fault::kLoseTail:
        piece.resize(piece.size() - 8);
        return {piece};
      case Fault::kKeepOldTail:
        std::memset(piece.data() + piece.size() - 8, 0, 8);
        return {piece};
      case Fault::kRepeatPiece:
        return {before};
      case Fault::kBlankPiece:
        return {Piece(piece.size())};
      case Fault::kNone:
        break;
    }
    return {piece};
  }

 private:
  const Fault fault_;
  // By receiving rank: the number of pieces and the last piece.
  std::map<int, std::pair<int, Piece>> ways_;
};

struct FaultCase {
  const char* name;
  Operation operation;
  Algorithm algorithm;
  int64_t count;
  int root;
};

constexpr int kRanks = 3;
// A count of int64: 16 fill a piece, and each part of the data takes several.
constexpr int64_t kSmall = 16 * 12;
constexpr int64_t kLarge = 16 * 300;  // In the ring's order.

// Rank 1 sends data in each case: to a root, or as the root. Operations that
// run differently by algorithm or size have a case for each variant.
constexpr FaultCase kCases[] = {
    {"GatherAllReduce", Operation::kAllReduce, Algorithm::kRing, kSmall, 0},
    {"TreeAllReduce", Operation::kAllReduce, Algorithm::kTree, kSmall, 0},
    {"RingAllReduce", Operation::kAllReduce, Algorithm::kAuto, kLarge, 0},
    {"GatherReduce", Operation::kReduce, Algorithm::kRing, kSmall, 0},
    {"TreeReduce", Operation::kReduce, Algorithm::kTree, kSmall, 0},
    {"RingReduce", Operation::kReduce, Algorithm::kAuto, kLarge, 0},
    {"ReduceScatter", Operation::kReduceScatter, Algorithm::kAuto, kSmall, 0},
    {"AllGather", Operation::kAllGather, Algorithm::kAuto, kSmall, 0},
    {"Broadcast", Operation::kBroadcast, Algorithm::kAuto, kSmall, 1},
    {"Scatter", Operation::kScatter, Algorithm::kAuto, kSmall, 1},
    {"Gather", Operation::kGather, Algorithm::kAuto, kSmall, 2},
    {"AllToAll", Operation::kAllToAll, Algorithm::kAuto, kSmall, 0},
    {"Send", Operation::kSend, Algorithm::kAuto, kSmall, 1},
};

void PrintTo(const FaultCase& c, std::ostream* out) { *out << c.name; }

class OverTransportFaultTest : public testing::TestWithParam<FaultCase> {
 protected:
  // Returns the first cause of a run in which rank 1 sends through the fault.
  absl::Status Run(Fault fault) {
    const FaultCase& c = GetParam();
    const CheckedCall call = {c.operation, DataType::kInt64, ReduceOp::kSum,
                              c.count, c.root};
    return FirstCause(RunOverMemory(
        kRanks, {.max_piece_bytes = 128, .max_pieces = 4, .harm = Harm(fault)},
        [&](Transport& transport) {
          return RunAndCheck(transport, {call}, AdditionOrder::kBySize,
                             [&](Transport& t, const Collective& collective) {
                               return RunOverTransport(t, collective,
                                                       c.algorithm);
                             });
        }));
  }
};

TEST_P(OverTransportFaultTest, IsSeenAndNothingElse) {
  EXPECT_THAT(Run(Fault::kNone), IsOk());
  EXPECT_THAT(
      Run(Fault::kLoseTail),
      StatusIs(absl::StatusCode::kInternal,
               HasSubstr("received 120 bytes from rank 1 where it expected "
                         "128")));
  for (const Fault fault : {Fault::kSwapTwoPieces, Fault::kKeepOldTail,
                            Fault::kRepeatPiece, Fault::kBlankPiece}) {
    EXPECT_THAT(Run(fault), StatusIs(absl::StatusCode::kDataLoss,
                                     HasSubstr("the output is wrong")))
        << "fault " << static_cast<int>(fault);
  }
}

INSTANTIATE_TEST_SUITE_P(Operations, OverTransportFaultTest,
                         testing::ValuesIn(kCases), [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace lockstep
