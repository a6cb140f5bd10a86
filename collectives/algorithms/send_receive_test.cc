// Sends and receives that fit each other, and such as do not.
#include "collectives/algorithms/send_receive.h"

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "collectives/algorithms/memory_transport.h"
#include "collectives/algorithms/transport.h"
#include "collectives/collective.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

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

}  // namespace
}  // namespace lockstep
