// The rings over a transport that can be made to misbehave: what the checks of
// this folder reject.
#include "collectives/host/ring.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/buffer.h"
#include "collectives/host/call.h"
#include "collectives/host/group_member.h"
#include "collectives/host/shared_region.h"
#include "collectives/host/shared_transport.h"
#include "collectives/host/transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

enum class Fault {
  kNone,
  kSwapTwoPieces,  // The first two pieces arrive in each other's place.
  kLoseTail,       // The third piece is 8 bytes short.
  kKeepOldTail,    // The last 8 bytes of the third piece are not written.
  kRepeatPiece,    // The third piece is the second once more.
  kBlankPiece,     // The third piece is all zero.
};

// Does to what one rank sends what `fault` says.
class FaultyTransport : public Transport {
 public:
  FaultyTransport(Transport& real, Fault fault)
      : real_(real),
        fault_(fault),
        room_(static_cast<size_t>(real.max_piece_bytes())) {}

  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  int64_t max_piece_bytes() const override { return real_.max_piece_bytes(); }

  std::optional<std::span<std::byte>> Room(int peer) override {
    if (!real_.Room(peer).has_value()) return std::nullopt;
    return std::span(room_);
  }

  void Send(int peer, int64_t size) override {
    const std::vector<std::byte> piece(room_.begin(), room_.begin() + size);
    ++pieces_;
    if (fault_ == Fault::kSwapTwoPieces && pieces_ == 1) {
      held_ = piece;
      return;
    }
    std::vector<std::byte> sent = piece;
    if (pieces_ == 3) {
      if (fault_ == Fault::kLoseTail) sent.resize(sent.size() - 8);
      if (fault_ == Fault::kKeepOldTail) {
        std::memset(sent.data() + sent.size() - 8, 0, 8);
      }
      if (fault_ == Fault::kRepeatPiece) sent = previous_;
      if (fault_ == Fault::kBlankPiece) {
        sent.assign(sent.size(), std::byte{0});
      }
    }
    Forward(peer, sent);
    if (!held_.empty()) Forward(peer, std::exchange(held_, {}));
    previous_ = piece;
  }

  std::optional<std::span<const std::byte>> Received(int peer) override {
    return real_.Received(peer);
  }
  void Release(int peer) override { real_.Release(peer); }
  absl::Status Wait(int send_peer, int receive_peer) override {
    return real_.Wait(send_peer, receive_peer);
  }

 private:
  void Forward(int peer, const std::vector<std::byte>& piece) {
    std::memcpy(real_.Room(peer)->data(), piece.data(), piece.size());
    real_.Send(peer, static_cast<int64_t>(piece.size()));
  }

  Transport& real_;
  const Fault fault_;
  int pieces_ = 0;
  std::vector<std::byte> room_;
  std::vector<std::byte> previous_;
  std::vector<std::byte> held_;
};

constexpr int kRanks = 3;
constexpr int64_t kSlotBytes = 64;
// 8 int64 fill a slot, so each segment takes four pieces.
constexpr int64_t kCount = kRanks * 8 * 4;

int64_t ValueAt(int rank, int64_t i) { return (rank + 1) * (i + 1); }

// Runs `ring` on threads; rank 1 sends through the fault. Returns the first
// error of a rank, else of `check`.
absl::Status Run(
    Fault fault,
    const std::function<absl::Status(Transport&, std::vector<int64_t>&)>& ring,
    const std::function<absl::Status(int, const std::vector<int64_t>&)>&
        check) {
  auto created = SharedRegion::Create({kRanks, kSlotBytes});
  LOCKSTEP_RETURN_IF_ERROR(created.status());
  const auto region = std::make_shared<SharedRegion>(*std::move(created));
  std::vector<absl::Status> statuses(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      GroupMember member(region, rank, absl::Seconds(20), nullptr);
      SharedTransport real(member);
      FaultyTransport faulty(real, rank == 1 ? fault : Fault::kNone);
      std::vector<int64_t> data;
      for (int64_t i = 0; i < kCount; ++i) data.push_back(ValueAt(rank, i));
      absl::Status status = member.Enter(Call());
      if (status.ok()) status = ring(faulty, data);
      // As HostCommunicator does, so that nobody waits for this rank.
      if (!status.ok()) status = member.Fail(status);
      statuses[rank] = status.ok() ? check(rank, data) : status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) {
    LOCKSTEP_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status Compare(int rank, int64_t i, int64_t got, int64_t want) {
  if (got == want) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("rank ", rank, ", element ", i, ": ",
                                          got, " in place of ", want));
}

absl::Status AllReduce(Fault fault) {
  return Run(
      fault,
      [](Transport& transport, std::vector<int64_t>& data) {
        return RingAllReduceSum(transport, std::span(data));
      },
      [](int rank, const std::vector<int64_t>& data) {
        for (int64_t i = 0; i < kCount; ++i) {
          LOCKSTEP_RETURN_IF_ERROR(Compare(rank, i, data[i], 6 * (i + 1)));
        }
        return absl::OkStatus();
      });
}

absl::Status Broadcast(Fault fault, int root) {
  return Run(
      fault,
      [root](Transport& transport, std::vector<int64_t>& data) {
        return RingBroadcast(transport, std::as_writable_bytes(std::span(data)),
                             root);
      },
      [root](int rank, const std::vector<int64_t>& data) {
        for (int64_t i = 0; i < kCount; ++i) {
          LOCKSTEP_RETURN_IF_ERROR(Compare(rank, i, data[i], ValueAt(root, i)));
        }
        return absl::OkStatus();
      });
}

absl::Status AllGather(Fault fault) {
  return Run(
      fault,
      [](Transport& transport, std::vector<int64_t>& data) {
        return RingAllGather(transport,
                             std::as_writable_bytes(std::span(data)));
      },
      [](int rank, const std::vector<int64_t>& data) {
        for (int64_t i = 0; i < kCount; ++i) {
          const int from = static_cast<int>(i / (kCount / kRanks));
          LOCKSTEP_RETURN_IF_ERROR(Compare(rank, i, data[i], ValueAt(from, i)));
        }
        return absl::OkStatus();
      });
}

TEST(RingTest, IsRightOverAFaultlessTransport) {
  EXPECT_THAT(AllReduce(Fault::kNone), IsOk());
  for (int root = 0; root < kRanks; ++root) {
    EXPECT_THAT(Broadcast(Fault::kNone, root), IsOk());
  }
  EXPECT_THAT(AllGather(Fault::kNone), IsOk());
}

// Controls: each fault must show in the result of each collective.
class RingFaultTest : public testing::TestWithParam<Fault> {};

TEST_P(RingFaultTest, IsRejected) {
  const bool wrong_size = GetParam() == Fault::kLoseTail;
  const auto is_rejected = StatusIs(
      wrong_size ? absl::StatusCode::kInternal : absl::StatusCode::kDataLoss,
      HasSubstr(wrong_size
                    ? "received 56 bytes from rank 1 where it expected 64"
                    : "in place of"));
  EXPECT_THAT(AllReduce(GetParam()), is_rejected);
  EXPECT_THAT(Broadcast(GetParam(), /*root=*/1), is_rejected);
  EXPECT_THAT(AllGather(GetParam()), is_rejected);
}

INSTANTIATE_TEST_SUITE_P(Faults, RingFaultTest,
                         testing::Values(Fault::kSwapTwoPieces,
                                         Fault::kLoseTail, Fault::kKeepOldTail,
                                         Fault::kRepeatPiece,
                                         Fault::kBlankPiece),
                         [](const auto& info) {
                           switch (info.param) {
                             case Fault::kNone:
                               return "None";
                             case Fault::kSwapTwoPieces:
                               return "SwapTwoPieces";
                             case Fault::kLoseTail:
                               return "LoseTail";
                             case Fault::kKeepOldTail:
                               return "KeepOldTail";
                             case Fault::kRepeatPiece:
                               return "RepeatPiece";
                             case Fault::kBlankPiece:
                               return "BlankPiece";
                           }
                           return "";
                         });

}  // namespace
}  // namespace lockstep
