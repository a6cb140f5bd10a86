// That the tests' transport is as bounded and as strict as they need it.
#include "collectives/algorithms/memory_transport.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

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

}  // namespace
}  // namespace lockstep
