// Programs in the place of Python: right, wrong, dead and silent ones; and
// PyTorch itself, where there is one.
#include "benchmarks/syncbn_peer.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "benchmarks/fake_python.h"
#include "benchmarks/syncbn_turn.h"
#include "benchmarks/torch_process.h"
#include "collectives/data_type.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncbn/activations.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

absl::StatusOr<SyncBnPeer> Start(const std::string& script,
                                 absl::Duration timeout = absl::Seconds(60)) {
  return SyncBnPeer::Start({MakePython(script)}, absl::Now() + timeout);
}

absl::Time Later() { return absl::Now() + absl::Minutes(1); }

SyncBnRequest Request(int iterations) {
  SyncBnRequest request;
  request.layer = {.n = 2, .h = 3, .w = 5, .c = 7, .seed = 11};
  request.warmup = 1;
  request.iterations = iterations;
  return request;
}

constexpr char kReady[] = "echo 'lockstep: ready 2.1.0 ValueError: no'; ";

TEST(SyncBnPeerTest, HandsOnWhatItTook) {
  absl::StatusOr<SyncBnPeer> peer = Start(absl::StrCat(
      kReady, "while read line; do echo lockstep: timed 1 2 3 4; done"));
  ASSERT_THAT(peer, IsOk());
  EXPECT_THAT(peer->name(),
              AllOf(HasSubstr("PyTorch 2.1.0 ("),
                    HasSubstr("SyncBatchNorm on the CPU: ValueError: no")));
  const absl::StatusOr<RankTurn> turn = peer->Time(Request(2), Later());
  ASSERT_THAT(turn, IsOk());
  EXPECT_EQ(turn->note, peer->name());
  ASSERT_THAT(turn->forward, SizeIs(2));
  ASSERT_THAT(turn->backward, SizeIs(2));
  EXPECT_EQ(turn->forward[1].end, 3);
  EXPECT_EQ(turn->backward[1].end, 4);
}

TEST(SyncBnPeerTest, SaysWhatItCannot) {
  absl::StatusOr<SyncBnPeer> peer = Start(absl::StrCat(
      kReady, "read line; echo lockstep: cannot RuntimeError: no Half; cat"));
  ASSERT_THAT(peer, IsOk());
  const absl::StatusOr<RankTurn> turn = peer->Time(Request(2), Later());
  ASSERT_THAT(turn, IsOk());
  EXPECT_EQ(turn->missing, "RuntimeError: no Half");
  EXPECT_THAT(turn->forward, IsEmpty());
}

TEST(SyncBnPeerTest, SaysWhyThereIsNone) {
  EXPECT_THAT(Start("echo lockstep: missing No module named x"),
              StatusIs(kUnavailable, HasSubstr("No module named x")));
  EXPECT_THAT(Start("sleep 1000", absl::Milliseconds(50)),
              StatusIs(kUnavailable, HasSubstr("did not answer in time")));
}

TEST(SyncBnPeerTest, GivesUpOneThatHangs) {
  absl::StatusOr<SyncBnPeer> peer = Start(absl::StrCat(kReady, "sleep 1000"));
  ASSERT_THAT(peer, IsOk());
  EXPECT_THAT(peer->Time(Request(1), absl::Now() + absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("did not answer in time")));
}

TEST(SyncBnPeerTest, ReportsOneThatDies) {
  absl::StatusOr<SyncBnPeer> peer =
      Start(absl::StrCat(kReady, "read line; echo MemoryError; exit 1"));
  ASSERT_THAT(peer, IsOk());
  EXPECT_THAT(peer->Time(Request(1), Later()),
              StatusIs(kUnavailable, HasSubstr("it said: MemoryError")));
}

TEST(PeerLineTest, SaysWhatToTime) {
  SyncBnRequest request = Request(3);
  EXPECT_EQ(PeerLine(request), "2 7 3 5 nhwc float32 11 1 3");
  request.layer.layout = Layout::kNchw;
  request.layer.type = DataType::kBFloat16;
  EXPECT_EQ(PeerLine(request), "2 7 3 5 nchw bfloat16 11 1 3");
}

TEST(ParsePeerAnswerTest, TakesNothingElse) {
  EXPECT_THAT(ParsePeerAnswer(Request(1), "timed 0.5 1e-3"), IsOk());
  for (const char* answer :
       {"", "timed", "timed 1", "timed 1 2 3", "took 1 2", "timed 0 1",
        "timed nan 1", "timed inf 1", "timed -1 1", "timed 1 x"}) {
    EXPECT_THAT(
        ParsePeerAnswer(Request(1), answer),
        StatusIs(absl::StatusCode::kInternal, HasSubstr("is not understood")))
        << answer;
  }
}

// With the script itself, if some Python has PyTorch.
TEST(SyncBnPeerTest, TimesPyTorch) {
  absl::StatusOr<SyncBnPeer> peer =
      SyncBnPeer::Start(PythonsToTry(""), Later());
  if (!peer.ok()) GTEST_SKIP() << peer.status();
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
    SyncBnRequest request = Request(3);
    request.layer.layout = layout;
    const absl::StatusOr<RankTurn> turn = peer->Time(request, Later());
    ASSERT_THAT(turn, IsOk());
    EXPECT_EQ(turn->missing, "");
    EXPECT_THAT(turn->forward, SizeIs(3));
  }
}

}  // namespace
}  // namespace lockstep
