// That the checks of this folder reject what a wrong algorithm, or a transport
// that misbehaves, does in every operation that carries data.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/data_types.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/checked_call.h"
#include "collectives/algorithms/memory_transport.h"
#include "collectives/algorithms/over_transport.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "collectives/group_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// Runs on 3 ranks; rank 2 does `harm_after` to its buffers.
absl::Status RunHarmed(const CheckedCall& call, AdditionOrder order,
                       absl::FunctionRef<void(const Collective&)> harm_after) {
  return FirstCause(RunOverMemory(3, {}, [&](Transport& transport) {
    return RunAndCheck(transport, call, order,
                       [&](Transport& t, const Collective& collective) {
                         absl::Status status =
                             RunOverTransport(t, collective, Algorithm::kAuto);
                         if (t.rank() == 2) harm_after(collective);
                         return status;
                       });
  }));
}

constexpr auto kNoHarm = [](const Collective&) {};

TEST(RunAndCheckTest, RejectsOneWrongBit) {
  const CheckedCall call = {.operation = Operation::kAllToAll, .count = 5};
  EXPECT_THAT(RunHarmed(call, AdditionOrder::kBySize, kNoHarm), IsOk());
  EXPECT_THAT(RunHarmed(call, AdditionOrder::kBySize,
                        [](const Collective& c) {
                          c.output.bytes()[14 * 8 + 7] ^= std::byte{1};
                        }),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("the output is wrong from element 14 of 15")));
}

TEST(RunAndCheckTest, RejectsAWriteBesideTheOutput) {
  EXPECT_THAT(RunHarmed({.operation = Operation::kAllReduce, .count = 5},
                        AdditionOrder::kBySize,
                        [](const Collective& c) {
                          c.output.bytes()[c.output.size_bytes()] ^=
                              std::byte{1};
                        }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("beside")));
}

TEST(RunAndCheckTest, RejectsAChangedInput) {
  EXPECT_THAT(RunHarmed({.operation = Operation::kAllReduce, .count = 5},
                        AdditionOrder::kBySize,
                        [](const Collective& c) {
                          const_cast<std::byte&>(c.input.bytes()[0]) ^=
                              std::byte{1};
                        }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the input")));
}

TEST(RunAndCheckTest, RejectsTheOtherOrder) {
  for (const Operation operation :
       {Operation::kAllReduce, Operation::kReduce}) {
    const CheckedCall call = {operation, DataType::kFloat32, ReduceOp::kSum,
                              /*count=*/100};
    EXPECT_THAT(RunHarmed(call, AdditionOrder::kTree, kNoHarm), IsOk());
    EXPECT_THAT(RunHarmed(call, AdditionOrder::kRing, kNoHarm),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong")));
  }
}

TEST(RunAndCheckTest, RejectsTheOtherOrderOfZeros) {
  CheckedCall call = {Operation::kAllReduce, DataType::kFloat32, ReduceOp::kMax,
                      /*count=*/100};
  call.only_zeros = true;
  EXPECT_THAT(RunHarmed(call, AdditionOrder::kTree, kNoHarm), IsOk());
  EXPECT_THAT(RunHarmed(call, AdditionOrder::kRing, kNoHarm),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong")));
}

enum class Fault {
  kNone,
  kSwapTwoPieces,  // The second and third pieces arrive in each other's place.
  kLoseTail,       // The third piece is 8 bytes short.
  kKeepOldTail,    // The last 8 bytes of the third piece are not written.
  kRepeatPiece,    // The third piece is the second once more.
  kBlankPiece,     // The third piece is all zero.
};

// Does what `fault` says to the pieces that one rank sends, to each peer.
class FaultyTransport : public Transport {
 public:
  FaultyTransport(Transport& real, Fault fault) : real_(real), fault_(fault) {}

  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  int64_t max_piece_bytes() const override { return real_.max_piece_bytes(); }
  int max_pieces() const override { return real_.max_pieces(); }

  std::optional<std::span<std::byte>> Room(int peer) override {
    if (!real_.Room(peer).has_value()) return std::nullopt;
    Way& way = ways_[peer];
    way.room.resize(static_cast<size_t>(max_piece_bytes()));
    return way.room;
  }

  void Send(int peer, int64_t size) override {
    Way& way = ways_[peer];
    const Piece piece(way.room.begin(), way.room.begin() + size);
    const Piece second = std::exchange(way.last, piece);
    ++way.pieces;
    if (fault_ == Fault::kSwapTwoPieces && way.pieces == 2) return;
    Forward(peer, way.pieces == 3 ? Harmed(piece, second) : piece);
    if (fault_ == Fault::kSwapTwoPieces && way.pieces == 3) {
      Forward(peer, second);
    }
  }

  std::optional<std::span<const std::byte>> Received(int peer) override {
    return real_.Received(peer);
  }
  void Release(int peer) override { real_.Release(peer); }
  absl::Status Wait(int send_peer, int receive_peer) override {
    return real_.Wait(send_peer, receive_peer);
  }

 private:
  using Piece = std::vector<std::byte>;
  struct Way {
    std::vector<std::byte> room;
    int pieces = 0;
    Piece last;
  };

  Piece Harmed(Piece piece, const Piece& second) const {
    switch (fault_) {
      case Fault::kLoseTail:
        piece.resize(piece.size() - 8);
        return piece;
      case Fault::kKeepOldTail:
        std::memset(piece.data() + piece.size() - 8, 0, 8);
        return piece;
      case Fault::kRepeatPiece:
        return second;
      case Fault::kBlankPiece:
        return Piece(piece.size());
      case Fault::kNone:
      case Fault::kSwapTwoPieces:
        break;
    }
    return piece;
  }

  void Forward(int peer, const Piece& piece) {
    std::memcpy(real_.Room(peer)->data(), piece.data(), piece.size());
    real_.Send(peer, static_cast<int64_t>(piece.size()));
  }

  Transport& real_;
  const Fault fault_;
  std::map<int, Way> ways_;  // By peer.
};

struct FaultCase {
  const char* name;
  Operation operation;
  Algorithm algorithm;
  int64_t count;
  int root;
};

constexpr int kRanks = 3;
// Of int64: 16 fill a piece, and each part of the data takes several.
constexpr int64_t kSmall = 16 * 12;
constexpr int64_t kLarge = 16 * 300;  // In the order of the ring.

// Rank 1 sends data in each: to a root, or as the root. Of those that take
// another way with another algorithm or size, all ways.
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
  // The first cause, of a run in which rank 1 sends through the fault.
  absl::Status Run(Fault fault) {
    const FaultCase& c = GetParam();
    const CheckedCall call = {c.operation, DataType::kInt64, ReduceOp::kSum,
                              c.count, c.root};
    return FirstCause(RunOverMemory(
        kRanks, {.max_piece_bytes = 128, .max_pieces = 4},
        [&](Transport& real) {
          FaultyTransport faulty(real, real.rank() == 1 ? fault : Fault::kNone);
          return RunAndCheck(faulty, call, AdditionOrder::kBySize,
                             [&](Transport& t, const Collective& collective) {
                               return RunOverTransport(t, collective,
                                                       c.algorithm);
                             });
        }));
  }
};

TEST_P(OverTransportFaultTest, IsRightWithoutAFault) {
  EXPECT_THAT(Run(Fault::kNone), IsOk());
}

TEST_P(OverTransportFaultTest, LostTailIsReported) {
  EXPECT_THAT(
      Run(Fault::kLoseTail),
      StatusIs(absl::StatusCode::kInternal,
               HasSubstr("received 120 bytes from rank 1 where it expected "
                         "128")));
}

TEST_P(OverTransportFaultTest, WrongDataIsRejected) {
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
